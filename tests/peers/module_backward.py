#!/usr/bin/env python3
"""Gradients of the module beside those of torch.nn.MultiheadAttention, on calls that hypothesis draws.

    HEADWISE_BUILD=build/dev python tests/peers/module_backward.py [CALLS]

What torch's autograd says in float64 about the same, already rounded, parameters and inputs is what is expected.
"""
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.insert(0, str(pathlib.Path(os.environ.get("HEADWISE_BUILD", ROOT / "build" / "dev")) / "python"))

import torch  # noqa: E402
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import headwise  # noqa: E402

# By dtype: errors of a gradient relative to its largest element. Parameters' are float32 for 16-bit modules.
INPUTS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1e-2}
PARAMETERS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 1e-5, torch.bfloat16: 1e-5}
NAMES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16"}
SIZES = st.sampled_from([1, 2, 3, 5, 17, 33, 65])
CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 1500


def random(draw, *shape, dtype):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**40)))
    return torch.randn(shape, generator=generator).to(dtype)


def draw_mask(draw, shape, dtype):
    """Hides some keys, but shows the first one: torch's answer for a query that sees none is NaN."""
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    if kind == "none":
        return None
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**40)))
    hidden = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.4]))
    hidden[..., 0] = False
    if kind == "bool":
        return hidden
    return torch.randn(shape, generator=generator).to(dtype).masked_fill(hidden, -torch.inf)


def wide(mask):
    return mask if mask is None or mask.dtype == torch.bool else mask.double()


def check(found, expected, bound, what):
    error = (found.double() - expected).abs().max() if found.numel() else torch.tensor(0.0)
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    assert error <= bound * scale, f"{what}: {error.item():.2g} of {scale:.2g}"


@st.composite
def calls(draw):
    dtype = draw(st.sampled_from(list(NAMES)))
    n_heads = draw(st.sampled_from([1, 2, 4]))
    E, same = n_heads * draw(st.sampled_from([1, 3, 8, 16])), draw(st.booleans())
    options = {"bias": draw(st.booleans()), "add_bias_kv": draw(st.booleans()), "add_zero_attn": draw(st.booleans()),
               "batch_first": draw(st.booleans())}
    if not same:
        options |= {"kdim": draw(SIZES), "vdim": draw(SIZES)}
    B, T_q, T_k = draw(st.sampled_from([1, 2, 3])), draw(SIZES), draw(SIZES)
    batched = draw(st.booleans())
    if not batched:
        B = 1

    def shape(T, width):
        return ((B, T, width) if options["batch_first"] else (T, B, width)) if batched else (T, width)

    query = random(draw, *shape(T_q, E), dtype=dtype)
    if same and draw(st.booleans()):
        key = value = query
        T_k = T_q
    else:
        key = random(draw, *shape(T_k, options.get("kdim", E)), dtype=dtype)
        value = random(draw, *shape(T_k, options.get("vdim", E)), dtype=dtype)
    masks = {"attn_mask": draw_mask(draw, draw(st.sampled_from([(T_q, T_k), (B * n_heads, T_q, T_k)])), dtype),
             "key_padding_mask": draw_mask(draw, (B, T_k) if batched else (T_k,), dtype)}
    weights = draw(st.sampled_from(["none", "averaged", "each"]))
    call = {"need_weights": weights != "none", "average_attn_weights": weights == "averaged"}
    return dtype, E, n_heads, options, (query, key, value), masks, call, draw(st.integers(0, 2**40))


@settings(max_examples=CALLS, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
          suppress_health_check=list(HealthCheck))
@given(calls())
def compare(call):
    dtype, E, n_heads, options, inputs, masks, call, seed = call
    generator = torch.Generator().manual_seed(seed)
    theirs = torch.nn.MultiheadAttention(E, n_heads, dtype=torch.float64, **options)
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_((torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5).to(dtype))
    ours = headwise.MultiheadAttention(E, n_heads, dtype=NAMES[dtype], **options)
    ours.load_state_dict(theirs.state_dict())

    copies = {id(x): x.clone().double().requires_grad_() for x in inputs}
    output, weights = theirs(*(copies[id(x)] for x in inputs), **{n: wide(m) for n, m in masks.items()}, **call)
    d_output = torch.randn(output.shape, generator=generator).to(dtype)
    d_weights = torch.randn(weights.shape, generator=generator).to(dtype) if call["need_weights"] else None
    loss = (output * d_output).sum()
    if d_weights is not None:
        loss = loss + (weights * d_weights).sum()
    loss.backward()

    state = ours.forward_with_state(*inputs, **masks, **call)[2]
    *found, parameters = ours.backward(state, d_output, d_weights)
    sums = {}
    for x, gradient in zip(inputs, found):
        sums[id(x)] = sums.get(id(x), 0) + gradient.double()
    for x in inputs:
        check(sums[id(x)], copies[id(x)].grad, 3 * INPUTS[dtype], f"an input of shape {tuple(x.shape)}")
    for name, p in theirs.named_parameters():
        check(torch.from_numpy(parameters[name]), p.grad, PARAMETERS[dtype], name)


if __name__ == "__main__":
    compare()
    print(f"{CALLS} passed, 0 failed")
