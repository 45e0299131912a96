#!/usr/bin/env python3
"""Gradients of attention beside PyTorch's autograd, on calls that hypothesis draws.

    HEADWISE_BUILD=build/dev python tests/peers/backward.py [CALLS]

What torch's autograd says in float64 about the same, already rounded, inputs is what is expected; torch's own float32
and bfloat16 gradients may not be nearer to it by much. Dropout is compared by handing torch the weights that were kept.
"""
import sys

from support import draws

import torch
from hypothesis import strategies as st

import headwise
from support.draws import any_of, close, definition, draw_mask, laid_out, leaf, random

# By dtype: errors of a gradient relative to its largest element, all inputs being of size 1.
DTYPES = {torch.float32: 1e-5, torch.float64: 1e-13, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SIZES = st.sampled_from([1, 2, 3, 5, 8, 16, 17, 33, 65, 130])
CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000


def kept(shape_q, T_k, p, seed):
    """The factors of dropout, read off the output of a call whose values are the unit vectors."""
    B, heads, T_q, _ = shape_q
    zeros = torch.zeros(B, heads, T_q, 1, dtype=torch.float64)
    keys = torch.zeros(B, heads, T_k, 1, dtype=torch.float64)
    unit = torch.eye(T_k, dtype=torch.float64).expand(B, heads, T_k, T_k)
    weights = headwise.scaled_dot_product_attention_with_state(zeros, keys, unit, dropout_p=p, dropout_seed=seed)[0]
    return weights * T_k


@draws.drawn(CALLS)
def backward(draw):
    dtype = any_of(draw, *DTYPES)
    B, n_kv, group, T_q, T_k, d, d_v = (draw(s) for s in (
        st.sampled_from([1, 2, 3]), st.sampled_from([1, 2]), st.sampled_from([1, 1, 2, 3]), SIZES, SIZES, SIZES, SIZES))
    heads = n_kv * group
    q = laid_out(draw, random(draw, B, heads, T_q, d, dtype=dtype))
    k = laid_out(draw, random(draw, B, n_kv, T_k, d, dtype=dtype))
    v = laid_out(draw, random(draw, B, n_kv, T_k, d_v, dtype=dtype))
    grad = laid_out(draw, random(draw, B, heads, T_q, d_v, dtype=dtype))
    shape = any_of(draw, (T_q, T_k), (1, T_k), (T_q, 1), (B, 1, T_q, T_k), (B, heads, T_q, T_k), (1, heads, 1, T_k))
    mask = draw_mask(draw, shape, dtype, hides=False, first_is_seen=False)
    is_causal, scale = draw(st.booleans()), any_of(draw, None, 0.25, 1.0 / d)
    dropout_p, seed = any_of(draw, 0.0, 0.0, 0.3), draw(st.integers(0, 2**60))
    headwise.set_num_threads(any_of(draw, 1, 2, 5))
    options = {"is_causal": is_causal, "scale": scale, "enable_gqa": True, "dropout_p": dropout_p,
               "dropout_seed": seed}

    state = headwise.scaled_dot_product_attention_with_state(q, k, v, mask, **options)
    found = headwise.scaled_dot_product_attention_backward(grad, q, k, v, *state, mask, **options)

    factors = kept(q.shape, T_k, dropout_p, seed) if dropout_p else 1.0
    floating = mask is not None and mask.dtype != torch.bool
    inputs = [leaf(x) for x in (q, k, v, mask)]
    out = definition(*inputs, is_causal, scale, factors)[0]
    expected = torch.autograd.grad(out, inputs if floating else inputs[:3], grad.double())
    # Rounding errors grow with the terms of the sums: norms of what meets in them.
    size = 1 + grad.double().norm(dim=-1).max().item() * v.double().norm(dim=-1).max().item()
    for name, x, reference in zip("qkvm", found, expected):
        count = {"q": 1, "k": group * T_q, "v": group * T_q, "m": B * heads * T_q * T_k / max(reference.numel(), 1)}
        close(name, x, reference, DTYPES[dtype] * size * max(1.0, count[name] ** 0.5) * (3 if name in "qk" else 1))
        assert x.dtype == dtype
    assert (found[3] is not None) == floating


def autograd_errors():
    """Errors of torch's own gradients and of ours where torch has a fast path, in one dtype after the other."""
    failed = 0
    for dtype in (torch.float32, torch.bfloat16):
        for T, d, causal in [(64, 64, False), (200, 32, True), (512, 64, True), (1024, 64, False)]:
            torch.manual_seed(T)
            q, k, v, grad = (torch.randn(1, 2, T, d).to(dtype) for _ in range(4))
            state = headwise.scaled_dot_product_attention_with_state(q, k, v, is_causal=causal)
            ours = headwise.scaled_dot_product_attention_backward(grad, q, k, v, *state, is_causal=causal)

            def gradients(as_dtype):
                x = [t.to(as_dtype).requires_grad_() for t in (q, k, v)]
                out = torch.nn.functional.scaled_dot_product_attention(*x, is_causal=causal)
                return torch.autograd.grad(out, x, grad.to(as_dtype))

            exact, theirs = gradients(torch.float64), gradients(dtype)
            for name, a, b, c in zip("qkv", ours, theirs, exact):
                error, their_error = ((x.double() - c).norm().item() / c.norm().item() for x in (a, b))
                good = error <= 1.1 * their_error + 1e-7
                failed += not good
                if not good or T == 1024:
                    print(f"{dtype} T {T} d{name}: error {error:.2e}, torch's {their_error:.2e}")
    return failed


if __name__ == "__main__":
    sys.exit(1 if autograd_errors() + draws.run_drawn(backward) else 0)
