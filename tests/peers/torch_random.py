#!/usr/bin/env python3
"""headwise.torch on calls that hypothesis draws, with gradients: function, module, convert() and enabled().

    HEADWISE_BUILD=build/dev python tests/peers/torch_random.py [CALLS]

What float64 says about the same, already rounded, inputs is what is expected: the definition for the function, torch's
module for the module. Dropout is drawn in order of the pairs, so weights of equal scores tell which were kept.
"""
import contextlib
import sys
from unittest import mock

from support import draws

import torch
from hypothesis import strategies as st

import headwise.torch
from support.draws import (SIZES, any_of, close, definition, draw_mask, draw_module, generator, laid_out, leaf,
                           random, wide)

# By dtype: errors of an output, and of a gradient, relative to the size of what is summed; of what goes through layers
# that round between them, relative to the largest element.
OUTPUTS = {torch.float32: 2e-6, torch.float64: 1e-14, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
GRADIENTS = {torch.float32: 1e-5, torch.float64: 1e-13, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LAYERS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 1e-2, torch.bfloat16: 8e-2}
CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 2500


def kept(shape, p, seed):
    """What dropout multiplies weights of (..., n_heads, T_q, T_k) by after torch.manual_seed(seed)."""
    torch.manual_seed(seed)
    *leading, T_q, T_k = shape
    query, key = (torch.zeros(*leading, T, 1, dtype=torch.float64) for T in (T_q, T_k))
    return headwise.torch.attention_with_weights(query, key, key, dropout_p=p)[1] * T_k


@draws.drawn(CALLS)
def attention(draw):
    dtype, rank = any_of(draw, *OUTPUTS), any_of(draw, 2, 3, 4, 4, 4, 5)
    B = any_of(draw, 1, 2, 3) if rank > 3 else 1
    n_kv, group = (any_of(draw, 1, 2), any_of(draw, 1, 1, 2, 3)) if rank > 2 else (1, 1)
    T_q, T_k, d, d_v = (draw(SIZES) for _ in range(4))
    heads = n_kv * group

    def tensor(*shape):
        """(B, n_heads, T, d), which the call sees with its own rank."""
        x = laid_out(draw, random(draw, *shape, dtype=dtype))
        return x.requires_grad_() if draw(st.booleans()) else x

    def as_called(x):
        return x[0, 0] if rank == 2 else x[0] if rank == 3 else x.unsqueeze(1) if rank == 5 else x

    q, k, v = tensor(B, heads, T_q, d), tensor(B, n_kv, T_k, d), tensor(B, n_kv, T_k, d_v)
    shape = any_of(draw, (T_q, T_k), (1, T_k), (T_q, 1)) if rank != 4 else any_of(
        draw, (T_q, T_k), (1, T_k), (B, 1, T_q, T_k), (B, heads, T_q, T_k), (1, heads, 1, T_k))
    attn_mask = draw_mask(draw, shape, dtype, hides=False, first_is_seen=False)
    if attn_mask is not None and attn_mask.dtype != torch.bool and draw(st.booleans()):
        attn_mask.requires_grad_()
    options = {"dropout_p": any_of(draw, 0.0, 0.0, 0.3), "is_causal": draw(st.booleans()),
               "scale": any_of(draw, None, 0.25, 1.0 / d), "enable_gqa": group > 1}
    way, seed = any_of(draw, "function", "weights", "enabled"), draw(st.integers(0, 2**40))
    factors = kept((B, heads, T_q, T_k), options["dropout_p"], seed) if options["dropout_p"] else 1.0

    torch.manual_seed(seed)
    inputs = (*(as_called(x) for x in (q, k, v)), attn_mask)
    found_weights = None
    if way == "enabled":
        with headwise.torch.enabled():
            found = torch.nn.functional.scaled_dot_product_attention(*inputs, **options)
    elif way == "weights":
        found, found_weights = headwise.torch.attention_with_weights(*inputs, **options)
    else:
        found = headwise.torch.scaled_dot_product_attention(*inputs, **options)
    leaves = [leaf(x) for x in (q, k, v, attn_mask)]
    expected, weights = definition(*leaves, options["is_causal"], options["scale"], factors)

    assert found.dtype == dtype
    close("output", found.detach(), as_called(expected), OUTPUTS[dtype] * (1 + 2 * v.double().abs().max().item()))
    outputs, expected_outputs = [found], [as_called(expected)]
    if found_weights is not None:
        assert found_weights.dtype == dtype
        close("weights", found_weights.detach(), as_called(weights), OUTPUTS[dtype] * 2)
        outputs.append(found_weights)
        expected_outputs.append(as_called(weights))

    wanted = [(name, x, y) for name, x, y in zip("qkvm", (q, k, v, attn_mask), leaves)
              if x is not None and x.requires_grad]
    assert found.requires_grad == bool(wanted)
    if not wanted:
        return
    grads = [random(draw, *x.shape, dtype=dtype) for x in outputs]
    found_grads = torch.autograd.grad(outputs, [x for _, x, _ in wanted], grads, allow_unused=True)
    expected_grads = torch.autograd.grad(expected_outputs, [y for *_, y in wanted], [g.double() for g in grads])
    # Rounding errors grow with the terms of the sums: norms of what meets in them.
    size = 1 + grads[0].double().norm(dim=-1).max().item() * v.detach().double().norm(dim=-1).max().item()
    if len(grads) > 1:
        size += grads[1].double().abs().max().item()
    for (name, x, _), a, b in zip(wanted, found_grads, expected_grads):
        terms = {"q": 1, "k": group * T_q, "v": group * T_q, "m": B * heads * T_q * T_k / x.numel()}[name]
        assert a.dtype == dtype
        bound = GRADIENTS[dtype] * size * max(1.0, terms ** 0.5)
        close(f"gradient of {name}", a, b, bound * (3 if name in "qk" else 1))


def expected_of(call, inputs, masks, factors):
    """Of torch's module in float64. Dropout is what it multiplies its weights by, which it only does when asked for
    them."""
    if factors is None:
        return call.module(*inputs, **masks, **call.outputs)
    with mock.patch("torch.nn.functional.dropout", lambda x, p, training=True: x * factors.reshape(x.shape)):
        output, weights = call.module(*inputs, **masks, **call.outputs | {"need_weights": True})
    return output, weights if call.outputs["need_weights"] else None


@contextlib.contextmanager
def made_ours(call, way):
    """The module of the call in its dtype, computed by headwise."""
    if way == "class":
        ours = headwise.torch.MultiheadAttention(call.embed_dim, call.n_heads, dtype=call.dtype, **call.options)
    else:
        ours = torch.nn.MultiheadAttention(call.embed_dim, call.n_heads, dtype=call.dtype, **call.options)
    ours.load_state_dict(call.module.state_dict())
    if way == "convert":
        assert headwise.torch.convert(ours) is ours
    with headwise.torch.enabled() if way == "enabled" else contextlib.nullcontext():
        yield ours


@draws.drawn(CALLS)
def module(draw):
    call = draw_module(draw, LAYERS)
    dtype, T_q, T_k = call.dtype, *call.scores_shape[2:]
    way, grad, seed = any_of(draw, "class", "convert", "enabled"), draw(st.booleans()), draw(st.integers(0, 2**40))
    dropout_p = any_of(draw, 0.0, 0.0, 0.3) if way != "enabled" else 0.0  # torch's own, where it is asked for weights
    appended = call.options["add_bias_kv"] or call.options["add_zero_attn"]
    if not appended and draw(st.booleans()):  # torch wants the mask that the hint stands for
        call.masks |= {"attn_mask": torch.ones(T_q, T_k, dtype=torch.bool).triu(1), "is_causal": True}
    if call.masks["key_padding_mask"] is not None and call.masks["attn_mask"] is not None:
        if call.masks["key_padding_mask"].dtype != call.masks["attn_mask"].dtype:
            call.masks["key_padding_mask"] = None  # deprecated: torch warns
    factors = kept(call.scores_shape, dropout_p, seed) if dropout_p else None

    call.module.train(dropout_p > 0).dropout = dropout_p
    leaves = {id(x): leaf(x) for x in call.inputs}
    expected = expected_of(call, [leaves[id(x)] for x in call.inputs],
                           {n: wide(m) if isinstance(m, torch.Tensor) else m for n, m in call.masks.items()}, factors)

    copies = {id(x): x.detach().requires_grad_(grad) for x in call.inputs}
    with made_ours(call, way) as ours, torch.set_grad_enabled(grad):
        ours.train(call.module.training).dropout = dropout_p
        torch.manual_seed(seed)
        found = ours(*(copies[id(x)] for x in call.inputs), **call.masks, **call.outputs)
        assert (found[1] is None) == (expected[1] is None)
        outputs = [(a, b) for a, b in zip(found, expected) if b is not None]
        for name, (a, b) in zip(("output", "weights"), outputs):
            assert a.dtype == dtype
            close(name, a.detach(), b, LAYERS[dtype] * max(1.0, b.abs().max().item()))
        if not grad:
            return
        numbers = generator(draw)
        grads = [torch.randn(b.shape, generator=numbers).to(dtype) for _, b in outputs]
        torch.autograd.backward([a for a, _ in outputs], grads)
    torch.autograd.backward([b for _, b in outputs], [g.double() for g in grads])
    for x in call.inputs:
        a, b = copies[id(x)].grad, leaves[id(x)].grad
        close(f"gradient of an input {tuple(x.shape)}", a, b, LAYERS[dtype] * max(1.0, b.abs().max().item()))
    for (name, p), q in zip(call.module.named_parameters(), ours.parameters()):
        close(f"gradient of {name}", q.grad, p.grad, LAYERS[dtype] * max(1.0, p.grad.abs().max().item()))


if __name__ == "__main__":
    sys.exit(1 if draws.run_drawn(attention, module) else 0)
