#!/usr/bin/env python3
"""Compares the errors of bf16 attention with PyTorch's own, both against the definition in double.

    HEADWISE_BUILD=build/dev python tests/peers/bf16_accuracy.py

Every kernel of this CPU is forced in turn, over random inputs and ones that are made to hurt. Neither the root
mean square of the errors nor the largest may exceed 1.2 times PyTorch's.
"""
import math
import os
import pathlib
import sys

import torch
from torch.nn.functional import scaled_dot_product_attention

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.insert(0, str(pathlib.Path(os.environ.get("HEADWISE_BUILD", ROOT / "build" / "dev")) / "python"))
import headwise  # noqa: E402 - after torch, whose threads it then shares

WORST = 1.2
DRAWS = 4


def normal(generator, *shape, scale=1.0):
    return (torch.randn(*shape, generator=generator) * scale).bfloat16()


def random(T_q, T_k, d, **options):
    def make(generator):
        return tuple(normal(generator, 1, 4, T, d) for T in (T_q, T_k, T_k)), options
    return make


def large_logits(generator):
    """Scores of some hundreds: single keys take all."""
    return (normal(generator, 1, 4, 256, 64, scale=8), normal(generator, 1, 4, 512, 64, scale=8),
            normal(generator, 1, 4, 512, 64)), {}


def dominant_key(generator):
    """One key has all the weight but some percent, spread over the others."""
    q, k, v = (normal(generator, 1, 4, T, 64) for T in (256, 1024, 1024))
    direction = normal(generator, 64).float()
    direction /= direction.norm()
    q = (q.float() + 6 * direction).bfloat16()
    k[:, :, 700] = (12 * direction).bfloat16()
    return (q, k, v), {}


def uniform_rows(generator):
    """16384 keys of the same weight, which is no bf16 number beside the row's largest."""
    q, k, v = (normal(generator, 1, 2, T, 64) for T in (64, 16384, 16384))
    k[:] = k[:, :, :1]
    k[:, :, 0] = (k[:, :, 1].float() * 1.1).bfloat16()
    return (q, k, v), {}


def uniform_rows_of_one_sign(generator):
    """The same, where sums grow with every key."""
    (q, k, v), options = uniform_rows(generator)
    return (q, k, v.abs()), options


CASES = {
    "random 64, 64, 64": random(64, 64, 64),
    "random 512, 512, 64": random(512, 512, 64),
    "random 256, 2048, 128": random(256, 2048, 128),
    "random 129, 333, 40": random(129, 333, 40),
    "random 512, 512, 64, causal": random(512, 512, 64, is_causal=True),
    "random 64, 16384, 64": random(64, 16384, 64),
    "random 256, 1024, 64, scale 1": random(256, 1024, 64, scale=1.0),
    "large logits": large_logits,
    "one dominant key": dominant_key,
    "long uniform rows": uniform_rows,
    "long uniform rows of one sign": uniform_rows_of_one_sign,
}


def reference(q, k, v, is_causal=False, scale=None):
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return torch.softmax(scores, -1) @ v


def errors(found, expected):
    difference = (found.double() - expected).abs()
    return torch.tensor([difference.square().mean(), difference.max()])


def pooled(errors_of_draws):
    """Root mean square of all draws, and the mean of their largest: one draw's is left to chance."""
    stacked = torch.stack(errors_of_draws)
    return stacked[:, 0].mean().sqrt().item(), stacked[:, 1].mean().item()


def module_errors(B, T, embed_dim, num_heads):
    """Ours and PyTorch's, of a module whose parameters are bf16."""
    headwise.set_kernel("auto")
    ours, peers = [], []
    for draw in range(DRAWS):
        torch.manual_seed(draw)
        module = torch.nn.MultiheadAttention(embed_dim, num_heads, batch_first=True).bfloat16().eval()
        x = torch.randn(B, T, embed_dim).bfloat16()
        exact = torch.nn.MultiheadAttention(embed_dim, num_heads, batch_first=True).double().eval()
        exact.load_state_dict({name: p.double() for name, p in module.state_dict().items()})
        mine = headwise.MultiheadAttention(embed_dim, num_heads, batch_first=True, dtype=torch.bfloat16).eval()
        mine.load_state_dict(module.state_dict())
        with torch.inference_mode():
            expected = exact(*[x.double()] * 3, need_weights=False)[0]
            peers.append(errors(module(x, x, x, need_weights=False)[0], expected))
        ours.append(errors(mine(x, x, x, need_weights=False)[0], expected))
    return pooled(ours), pooled(peers)


MODULES = (3, 17, 40, 5), (8, 128, 384, 12), (1, 500, 768, 12), (2, 16, 512, 8), (4, 1, 768, 12)


def main():
    passed = failed = 0
    print(f"{'case':32} {'kernel':9} {'rms':>9} {'PyTorch':>9} {'ratio':>6} {'largest':>9} {'PyTorch':>9} {'ratio':>6}")
    for number, (name, make) in enumerate(CASES.items()):
        draws = [make(torch.Generator().manual_seed(DRAWS * number + draw)) for draw in range(DRAWS)]
        expected = [reference(*inputs, **options) for inputs, options in draws]

        def measure(attention):
            return pooled([errors(attention(*inputs, **options), x) for (inputs, options), x in zip(draws, expected)])

        peer = measure(scaled_dot_product_attention)
        for kernel in headwise.available_kernels():
            headwise.set_kernel(kernel)
            ours = measure(headwise.scaled_dot_product_attention)
            ratios = [a / b for a, b in zip(ours, peer)]
            good = max(ratios) <= WORST
            passed, failed = passed + good, failed + (not good)
            print(f"{name:32} {kernel:9} {ours[0]:9.2e} {peer[0]:9.2e} {ratios[0]:6.2f} {ours[1]:9.2e} {peer[1]:9.2e} "
                  f"{ratios[1]:6.2f}{'' if good else '  FAILED'}", flush=True)
    for sizes in MODULES:
        ours, peer = module_errors(*sizes)
        ratios = [a / b for a, b in zip(ours, peer)]
        good = max(ratios) <= WORST
        passed, failed = passed + good, failed + (not good)
        name = "module " + ", ".join(map(str, sizes))
        print(f"{name:32} {'':9} {ours[0]:9.2e} {peer[0]:9.2e} {ratios[0]:6.2f} {ours[1]:9.2e} {peer[1]:9.2e} "
              f"{ratios[1]:6.2f}{'' if good else '  FAILED'}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
