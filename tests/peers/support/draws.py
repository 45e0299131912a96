"""Calls that hypothesis draws: how they are run, tensors in any layout, masks, and attention by its definition."""
import types

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SIZES = st.sampled_from([1, 2, 3, 5, 8, 16, 17, 33])
_done = {}  # how many calls of a test went well


def drawn(calls):
    """Makes a test of a function of hypothesis' draw: so many calls, the same ones in every run."""
    def decorate(test):
        def run(data):
            test(data.draw)
            _done[test.__name__] = _done.get(test.__name__, 0) + 1

        run.__name__ = run.__qualname__ = test.__name__
        return settings(max_examples=calls, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
                        suppress_health_check=list(HealthCheck))(given(st.data())(run))
    return decorate


def run_drawn(*tests):
    """Runs the tests; prints what failed, and the totals in the last line. Returns the number of failures."""
    torch.set_num_threads(1)
    failed = 0
    for test in tests:
        try:
            test()
        except Exception as error:  # the drawn call belongs to the message
            print(f"{test.__name__}: {error}", *getattr(error, "__notes__", []), sep="\n")
            failed += 1
    print(", ".join(f"{n} calls of {name}" for name, n in _done.items()))
    print(f"{sum(_done.values())} passed, {failed} failed")
    return failed


def any_of(draw, *values):
    return draw(st.sampled_from(values))


def generator(draw):
    return torch.Generator().manual_seed(draw(st.integers(0, 2**40)))


def random(draw, *shape, dtype):
    return torch.randn(shape, generator=generator(draw)).to(dtype)


def laid_out(draw, x):
    """The same values with other strides."""
    kind = any_of(draw, "contiguous", "swapped", "apart", "part")
    if kind == "swapped" and x.dim() > 2:
        return x.transpose(-3, -2).contiguous().transpose(-3, -2)
    if kind == "swapped":
        return x.transpose(0, -2).contiguous().transpose(0, -2)
    if kind == "apart":
        return torch.stack([x, x], -1)[..., 0]
    if kind == "part":
        return torch.cat([x, x], -2).narrow(-2, 0, x.shape[-2])
    return x


def draw_mask(draw, shape, dtype, hides, first_is_seen=True):
    """None, a boolean mask where True hides or else takes part, or a float. Torch has no answer, or several, for a
    query without a key: first_is_seen leaves every query its first one."""
    kind = any_of(draw, "none", "bool", "float")
    if kind == "none":
        return None
    numbers = generator(draw)
    hidden = torch.rand(shape, generator=numbers) < any_of(draw, 0.0, 0.4)
    if first_is_seen or draw(st.booleans()):
        hidden[..., 0] = False
    if kind == "bool":
        return hidden if hides else ~hidden
    return torch.randn(shape, generator=numbers).to(dtype).masked_fill(hidden, -torch.inf)


def wide(x):
    """The same values in float64; None and booleans as they are."""
    return x if x is None or x.dtype == torch.bool else x.double()


def leaf(x):
    """The same values in float64, to be differentiated by; None and booleans as they are."""
    return x if x is None or x.dtype == torch.bool else x.detach().double().requires_grad_()


def definition(q, k, v, mask, is_causal, scale, factors=1.0):
    """Attention from products in the dtype of q, (B, n_heads, T, d), so that no choice of torch's among its kernels
    shows: a hidden pair is absent, a query without a key gives 0. The weights are multiplied by factors (dropout)."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (scale if scale is not None else q.shape[-1] ** -0.5)
    hidden = torch.zeros(scores.shape, dtype=torch.bool)
    if is_causal:
        hidden |= ~torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None and mask.dtype == torch.bool:
        hidden |= ~mask
    elif mask is not None:
        hidden |= mask == -torch.inf
        scores = scores + mask.masked_fill(mask == -torch.inf, 0)
    empty = hidden.all(-1, keepdim=True)
    weights = scores.masked_fill(hidden & ~empty, -torch.inf).softmax(-1).masked_fill(hidden, 0) * factors
    return weights @ v, weights


def close(what, found, expected, bound):
    assert found.shape == expected.shape, f"{what}: found shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    worst = (found.double() - expected).abs().max().item() if expected.numel() else 0.0
    assert worst <= bound, f"{what}: {worst:.3g} off, allowed {bound:.3g}"


def draw_module(draw, dtypes, sizes=SIZES):
    """A call of nn.MultiheadAttention: its arguments, and a module in float64 whose parameters have the drawn dtype."""
    dtype, n_heads = any_of(draw, *dtypes), any_of(draw, 1, 2, 4)
    E, same = n_heads * any_of(draw, 1, 3, 8, 16), draw(st.booleans())
    options = {name: draw(st.booleans()) for name in ("bias", "add_bias_kv", "add_zero_attn", "batch_first")}
    if not same:
        options |= {"kdim": draw(sizes), "vdim": draw(sizes)}
    B, T_q, T_k, batched = any_of(draw, 1, 2, 3), draw(sizes), draw(sizes), draw(st.booleans())
    B = B if batched else 1

    def rows(T, width):
        shape = ((B, T, width) if options["batch_first"] else (T, B, width)) if batched else (T, width)
        return laid_out(draw, random(draw, *shape, dtype=dtype))

    query = rows(T_q, E)
    if same and draw(st.booleans()):
        key = value = query
        T_k = T_q
    else:
        key, value = rows(T_k, options.get("kdim", E)), rows(T_k, options.get("vdim", E))
    masks = {"attn_mask": draw_mask(draw, any_of(draw, (T_q, T_k), (B * n_heads, T_q, T_k)), dtype, hides=True),
             "key_padding_mask": draw_mask(draw, (B, T_k) if batched else (T_k,), dtype, hides=True)}
    weights = any_of(draw, "none", "averaged", "each")
    module, numbers = torch.nn.MultiheadAttention(E, n_heads, dtype=torch.float64, **options), generator(draw)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_((torch.randn(p.shape, generator=numbers) / p.shape[-1] ** 0.5).to(dtype))
    return types.SimpleNamespace(
        dtype=dtype, embed_dim=E, n_heads=n_heads, options=options, module=module,
        inputs=(query, key, value), masks=masks,
        outputs={"need_weights": weights != "none", "average_attn_weights": weights == "averaged"},
        scores_shape=(B, n_heads, T_q, T_k + options["add_bias_kv"] + options["add_zero_attn"]))
