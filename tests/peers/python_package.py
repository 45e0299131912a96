#!/usr/bin/env python3
"""The Python package beside PyTorch, on calls that hypothesis draws: attention and the module, forward.

    HEADWISE_BUILD=build/dev python tests/peers/python_package.py [CALLS]

What torch says in float64 about the same, already rounded, inputs is what is expected. Left out are the calls on which
torch itself has several answers (docs/torch_differences.md).
"""
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.insert(0, str(pathlib.Path(os.environ.get("HEADWISE_BUILD", ROOT / "build" / "dev")) / "python"))

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import headwise  # noqa: E402

# By dtype: what one rounding of a result may be off, and NumPy's type.
DTYPES = {torch.float32: (2e-6, np.float32), torch.float64: (1e-14, np.float64),
          torch.float16: (2e-3, np.float16), torch.bfloat16: (1.6e-2, ml_dtypes.bfloat16)}
SIZES = st.sampled_from([1, 2, 3, 5, 8, 16, 17, 33])
CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 2500
counts = {"attention": 0, "module": 0}


def bounded(test):
    return settings(max_examples=CALLS, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck))(test)


@st.composite
def laid_out(draw, x):
    """The same values with other strides."""
    kind = draw(st.sampled_from(["contiguous", "swapped", "apart", "part"]))
    if kind == "swapped" and x.dim() > 1:
        return x.transpose(0, -2).contiguous().transpose(0, -2)
    if kind == "apart":
        return torch.stack([x, x], -1)[..., 0]
    if kind == "part":
        return torch.cat([x, x], -2).narrow(-2, 0, x.shape[-2])
    return x


@st.composite
def given_as(draw, x):
    """The tensor, or the same memory as NumPy knows it."""
    if x is None or draw(st.booleans()):
        return x
    if x.dtype == torch.bfloat16:
        array = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.stride(-1) == 1 or x.numel() == 0 else x
        return array
    return x.numpy()


def random(draw, *shape, dtype):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**40)))
    return torch.randn(shape, generator=generator).to(dtype)


def draw_mask(draw, shape, dtype, hides):
    """None, a boolean mask that leaves every query its first key, or a float."""
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    if kind == "none":
        return None
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**40)))
    hidden = torch.rand(shape, generator=generator) < 0.4
    hidden[..., 0] = False
    if kind == "bool":
        return hidden if hides else ~hidden
    return torch.randn(shape, generator=generator).to(dtype).masked_fill(hidden, -torch.inf)


def wide(x):
    return x if x is None or x.dtype == torch.bool else x.double()


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


@bounded
@given(st.data())
def attention(data):
    draw = data.draw
    dtype = draw(st.sampled_from(list(DTYPES)))
    B, n_kv, group, T_q, T_k, d, d_v = (draw(s) for s in (
        st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 1, 2, 3]), SIZES, SIZES, SIZES, SIZES))
    q = draw(laid_out(random(draw, B, n_kv * group, T_q, d, dtype=dtype)))
    k = draw(laid_out(random(draw, B, n_kv, T_k, d, dtype=dtype)))
    v = draw(laid_out(random(draw, B, n_kv, T_k, d_v, dtype=dtype)))
    shape = draw(st.sampled_from([(T_q, T_k), (1, T_k), (B, 1, T_q, T_k), (B, n_kv * group, T_q, T_k)]))
    mask = draw_mask(draw, shape, dtype, hides=False)
    options = {"is_causal": mask is None and draw(st.booleans()), "enable_gqa": group > 1,
               "scale": draw(st.sampled_from([None, 0.25, 1.0]))}
    like = draw(given_as(q))
    found = headwise.scaled_dot_product_attention(
        like, draw(given_as(k)), draw(given_as(v)), draw(given_as(mask)), **options)
    expected = torch.nn.functional.scaled_dot_product_attention(*(wide(x) for x in (q, k, v, mask)), **options)
    compare(found, expected, like, dtype, v.double().abs().max().item())
    counts["attention"] += 1


@bounded
@given(st.data())
def module(data):
    draw = data.draw
    dtype = draw(st.sampled_from(list(DTYPES)))
    B, heads, T_q, T_k = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2, 4])), draw(SIZES), draw(SIZES)
    E = heads * draw(st.sampled_from([1, 3, 8]))
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
        return draw(laid_out(random(draw, *shape, dtype=dtype)))

    query, key, value = rows(T_q, E), rows(T_k, options.get("kdim", E)), rows(T_k, options.get("vdim", E))
    N = B if batched else 1
    mask = draw_mask(draw, draw(st.sampled_from([(T_q, T_k), (N * heads, T_q, T_k)])), dtype, hides=True)
    padding = draw_mask(draw, (B, T_k) if batched else (T_k,), dtype, hides=True)
    if mask is not None and padding is not None and mask.dtype != padding.dtype:
        padding = None  # torch warns, and rounds one to the other
    call = {"need_weights": draw(st.booleans()), "average_attn_weights": draw(st.booleans())}
    like = draw(given_as(query))
    found, weights = ours(like, draw(given_as(key)), draw(given_as(value)), draw(given_as(padding)),
                          attn_mask=draw(given_as(mask)), **call)
    expected, expected_weights = theirs.double()(*(wide(x) for x in (query, key, value, padding)),
                                                 attn_mask=wide(mask), **call)
    compare(found, expected, like, dtype, E * value.double().abs().max().item() / 4)
    assert (weights is None) == (expected_weights is None)
    if weights is not None:
        compare(weights, expected_weights, like, dtype, 1)
    counts["module"] += 1


def main():
    torch.set_num_threads(1)
    failed = 0
    for test in (attention, module):
        try:
            test()
        except Exception as error:  # the drawn call belongs to the message
            print(f"{test.__name__}: {error}")
            failed += 1
    print(", ".join(f"{n} calls of {name}" for name, n in counts.items()))
    print(f"{sum(counts.values())} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
