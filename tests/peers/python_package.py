#!/usr/bin/env python3
"""The Python package beside PyTorch, on calls that hypothesis draws: attention and the module, forward.

    HEADWISE_BUILD=build/dev python tests/peers/python_package.py [CALLS]

What torch says in float64 about the same, already rounded, inputs is what is expected. Left out are the calls on which
torch itself has several answers (docs/torch_differences.md).
"""
import sys

from support import draws

import ml_dtypes
import numpy as np
import torch
from hypothesis import strategies as st

import headwise
from support.draws import SIZES, any_of, draw_mask, laid_out, random, wide

# By dtype: what one rounding of a result may be off, and NumPy's type.
DTYPES = {torch.float32: (2e-6, np.float32), torch.float64: (1e-14, np.float64),
          torch.float16: (2e-3, np.float16), torch.bfloat16: (1.6e-2, ml_dtypes.bfloat16)}
CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 2500


def given_as(draw, x):
    """The tensor, or the same memory as NumPy knows it."""
    if x is None or draw(st.booleans()):
        return x
    if x.dtype == torch.bfloat16:
        array = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.stride(-1) == 1 or x.numel() == 0 else x
        return array
    return x.numpy()


def compare(found, expected, like, dtype, scale):
    eps, numpy_type = DTYPES[dtype]
    if isinstance(like, torch.Tensor):
        assert found.dtype == dtype, found.dtype
        found = found.double().numpy()
    else:
        assert found.dtype == np.dtype(numpy_type), found.dtype
        found = found.astype(np.float64)
    expected = expected.detach().numpy()
    assert found.shape == tuple(expected.shape), (found.shape, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=eps * (1 + scale))


@draws.drawn(CALLS)
def attention(draw):
    dtype = any_of(draw, *DTYPES)
    B, n_kv, group, T_q, T_k, d, d_v = (draw(s) for s in (
        st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 1, 2, 3]), *[SIZES] * 4))
    q = laid_out(draw, random(draw, B, n_kv * group, T_q, d, dtype=dtype))
    k = laid_out(draw, random(draw, B, n_kv, T_k, d, dtype=dtype))
    v = laid_out(draw, random(draw, B, n_kv, T_k, d_v, dtype=dtype))
    shape = any_of(draw, (T_q, T_k), (1, T_k), (B, 1, T_q, T_k), (B, n_kv * group, T_q, T_k))
    mask = draw_mask(draw, shape, dtype, hides=False)
    options = {"is_causal": mask is None and draw(st.booleans()), "enable_gqa": group > 1,
               "scale": any_of(draw, None, 0.25, 1.0)}
    like = given_as(draw, q)
    found = headwise.scaled_dot_product_attention(
        like, given_as(draw, k), given_as(draw, v), given_as(draw, mask), **options)
    expected = torch.nn.functional.scaled_dot_product_attention(*(wide(x) for x in (q, k, v, mask)), **options)
    compare(found, expected, like, dtype, v.double().abs().max().item())


@draws.drawn(CALLS)
def module(draw):
    dtype = any_of(draw, *DTYPES)
    B, heads, T_q, T_k = any_of(draw, 1, 2, 3), any_of(draw, 1, 2, 4), draw(SIZES), draw(SIZES)
    E = heads * any_of(draw, 1, 3, 8)
    options = {name: draw(st.booleans()) for name in ("bias", "add_bias_kv", "add_zero_attn", "batch_first")}
    if draw(st.booleans()):
        options.update(kdim=draw(SIZES), vdim=draw(SIZES))
    seed = draw(st.integers(0, 2**40))
    torch.manual_seed(seed)
    headwise.manual_seed(seed)
    theirs = torch.nn.MultiheadAttention(E, heads, **options, dtype=dtype).eval()
    ours = headwise.MultiheadAttention(E, heads, **options, dtype=dtype).eval()
    if draw(st.booleans()):
        ours.load_state_dict(theirs.state_dict())  # else the same by the seed
    batched = draw(st.booleans())

    def rows(T, width):
        shape = (T, width) if not batched else (B, T, width) if options["batch_first"] else (T, B, width)
        return laid_out(draw, random(draw, *shape, dtype=dtype))

    query, key, value = rows(T_q, E), rows(T_k, options.get("kdim", E)), rows(T_k, options.get("vdim", E))
    N = B if batched else 1
    mask = draw_mask(draw, any_of(draw, (T_q, T_k), (N * heads, T_q, T_k)), dtype, hides=True)
    padding = draw_mask(draw, (B, T_k) if batched else (T_k,), dtype, hides=True)
    if mask is not None and padding is not None and mask.dtype != padding.dtype:
        padding = None  # torch warns, and rounds one to the other
    call = {"need_weights": draw(st.booleans()), "average_attn_weights": draw(st.booleans())}
    like = given_as(draw, query)
    found, weights = ours(like, given_as(draw, key), given_as(draw, value), given_as(draw, padding),
                          attn_mask=given_as(draw, mask), **call)
    expected, expected_weights = theirs.double()(*(wide(x) for x in (query, key, value, padding)),
                                                 attn_mask=wide(mask), **call)
    compare(found, expected, like, dtype, E * value.double().abs().max().item() / 4)
    assert (weights is None) == (expected_weights is None)
    if weights is not None:
        compare(weights, expected_weights, like, dtype, 1)


if __name__ == "__main__":
    sys.exit(1 if draws.run_drawn(attention, module) else 0)
