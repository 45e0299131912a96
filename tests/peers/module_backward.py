#!/usr/bin/env python3
"""Gradients of the module beside those of torch.nn.MultiheadAttention, on calls that hypothesis draws.

    HEADWISE_BUILD=build/dev python tests/peers/module_backward.py [CALLS]

What torch's autograd says in float64 about the same, already rounded, parameters and inputs is what is expected.
"""
import sys

from support import draws

import torch
from hypothesis import strategies as st

import headwise
from support.draws import close, draw_module, generator, leaf, wide

# By dtype: errors of a gradient relative to its largest element. Parameters' are float32 for 16-bit modules.
INPUTS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1e-2}
PARAMETERS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 1e-5, torch.bfloat16: 1e-5}
SIZES = st.sampled_from([1, 2, 3, 5, 17, 33, 65])
CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 1500


def size(x):
    return max(1.0, x.abs().max().item())


@draws.drawn(CALLS)
def gradients(draw):
    call = draw_module(draw, INPUTS, SIZES)
    theirs, numbers = call.module, generator(draw)
    ours = headwise.MultiheadAttention(call.embed_dim, call.n_heads, dtype=str(call.dtype)[6:], **call.options)
    ours.load_state_dict(theirs.state_dict())

    copies = {id(x): leaf(x) for x in call.inputs}
    masks = {name: wide(mask) for name, mask in call.masks.items()}
    output, weights = theirs(*(copies[id(x)] for x in call.inputs), **masks, **call.outputs)
    d_output = torch.randn(output.shape, generator=numbers).to(call.dtype)
    d_weights = torch.randn(weights.shape, generator=numbers).to(call.dtype) if weights is not None else None
    loss = (output * d_output).sum()
    if d_weights is not None:
        loss = loss + (weights * d_weights).sum()
    loss.backward()

    state = ours.forward_with_state(*call.inputs, **call.masks, **call.outputs)[2]
    *found, parameters = ours.backward(state, d_output, d_weights)
    sums = {}
    for x, gradient in zip(call.inputs, found):
        sums[id(x)] = sums.get(id(x), 0) + gradient.double()
    for x in call.inputs:
        expected = copies[id(x)].grad
        close(f"an input of shape {tuple(x.shape)}", sums[id(x)], expected, 3 * INPUTS[call.dtype] * size(expected))
    for name, p in theirs.named_parameters():
        close(name, torch.from_numpy(parameters[name]), p.grad, PARAMETERS[call.dtype] * size(p.grad))


if __name__ == "__main__":
    sys.exit(1 if draws.run_drawn(gradients) else 0)
