#!/usr/bin/env python3
"""torch's own samples (torch.testing's OpInfo and ModuleInfo) through headwise, forward and backward.

    HEADWISE_BUILD=build/dev python tests/peers/torch_samples.py

What is expected is torch in float64 on the same inputs. Dropout is set to 0 on both sides: seeds draw other weights.
Samples that headwise does not take are listed with the reason.
"""
import copy
import inspect
import math
import sys
import warnings

import support  # noqa: F401

import torch
from torch.nn import functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

import headwise.torch

BOUNDS = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}
MODULES = ("nn.MultiheadAttention", "nn.TransformerEncoderLayer", "nn.TransformerEncoder", "nn.TransformerDecoderLayer",
           "nn.Transformer")
counts, skipped = {"passed": 0, "failed": 0}, {}


class Skipped(Exception):
    """Why a sample is none for headwise."""


def map_tensors(function, x):
    if isinstance(x, torch.Tensor):
        return function(x)
    if isinstance(x, (list, tuple)):
        return type(x)(map_tensors(function, y) for y in x)
    if isinstance(x, dict):
        return {name: map_tensors(function, y) for name, y in x.items()}
    return x


def tensors(x):
    found = []
    map_tensors(found.append, x)
    return found


def fresh(x, dtype=None):
    """The same leaves, once for each tensor object, so that self-attention stays what it is."""
    leaves = {}

    def leaf(t):
        if id(t) not in leaves:
            copied = t.detach().clone()
            if dtype is not None and copied.is_floating_point():
                copied = copied.to(dtype)
            leaves[id(t)] = copied.requires_grad_(t.requires_grad)
        return leaves[id(t)]

    return map_tensors(leaf, x)


def compare(found, expected, bound, what):
    assert len(found) == len(expected), (what, len(found), len(expected))
    for a, b in zip(found, expected):
        assert (a is None) == (b is None), what
        if a is None:
            continue
        assert a.shape == b.shape, (what, a.shape, b.shape)
        if not a.numel():
            continue
        nan = b.isnan()
        if nan.any():  # torch's answer for rows that see no key; headwise has 0
            assert a[nan].isfinite().all() or what == "gradients", what
            continue
        error = (a.double() - b.double()).abs().max().item() / (1 + b.double().abs().max().item())
        assert error <= bound and not math.isnan(error), (what, error)


def check(name, ours, theirs, call, dtype):
    """ours(*call) beside theirs(*call) in float64, and their gradients."""
    try:
        wide, narrow = fresh(call, torch.float64), fresh(call)
        expected, found = tensors(theirs(*wide[0], **wide[1])), tensors(ours(*narrow[0], **narrow[1]))
        compare(found, expected, BOUNDS[dtype], "values")
        grads = [torch.randn_like(x) for x in found]
        pairs = [(x, y, g) for x, y, g in zip(found, expected, grads) if x.requires_grad and not y.isnan().any()]
        if pairs:
            torch.autograd.backward([x for x, _, _ in pairs], [g for _, _, g in pairs])
            torch.autograd.backward([y for _, y, _ in pairs], [g.double() for _, _, g in pairs])
            unique = {id(a): (a, b) for a, b in zip(tensors(narrow), tensors(wide)) if a.requires_grad}
            found, expected = zip(*((a.grad, b.grad) for a, b in unique.values()))
            compare(found, expected, BOUNDS[dtype], "gradients")
        counts["passed"] += 1
    except Skipped as reason:
        skipped[f"{name}: {reason}"] = skipped.get(f"{name}: {reason}", 0) + 1
    except Exception as error:
        counts["failed"] += 1
        print(f"FAILED {name} {dtype}: {type(error).__name__}: {error}")


def without_dropout(function):
    names = list(inspect.signature(function).parameters)

    def call(*args, **kwargs):
        args = list(args)
        if "dropout_p" in names and len(args) > names.index("dropout_p"):
            args[names.index("dropout_p")] = 0.0
        elif "dropout_p" in names:
            kwargs = kwargs | {"dropout_p": 0.0}
        return function(*args, **kwargs)

    return call


def module_forward(query, key, value, embed_dim, num_heads, in_proj_weight, in_proj_bias, bias_k, bias_v, add_zero_attn,
                   dropout_p, out_proj_weight, out_proj_bias, training=True, key_padding_mask=None, need_weights=True,
                   attn_mask=None, use_separate_proj_weight=False, q_proj_weight=None, k_proj_weight=None,
                   v_proj_weight=None, static_k=None, static_v=None, average_attn_weights=True, is_causal=False):
    """torch's multi_head_attention_forward as a call of our operator."""
    if static_k is not None or static_v is not None:
        raise Skipped("static_k and static_v")
    if use_separate_proj_weight:
        in_proj_weight = None
    output, weights = torch.ops.headwise.multi_head_attention(
        query, key, value, num_heads, in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias, bias_k,
        bias_v, out_proj_weight, out_proj_bias, add_zero_attn, key_padding_mask, attn_mask, need_weights,
        average_attn_weights, is_causal, False)
    return output, weights if need_weights else None


def torchs_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """torch's own has no signature to look at."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                                          enable_gqa=enable_gqa)


def attention_samples():
    ours = {"nn.functional.scaled_dot_product_attention": headwise.torch.scaled_dot_product_attention,
            "nn.functional.multi_head_attention_forward": module_forward}
    theirs = {"nn.functional.scaled_dot_product_attention": torchs_attention,
              "nn.functional.multi_head_attention_forward": F.multi_head_attention_forward}
    for op in op_db:
        if op.name not in ours:
            continue
        for dtype in BOUNDS:
            for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
                check(op.name, without_dropout(ours[op.name]), without_dropout(theirs[op.name]),
                      ((sample.input, *sample.args), sample.kwargs), dtype)


def module_samples():
    for info in module_db:
        if info.name not in MODULES:
            continue
        for dtype in BOUNDS:
            for training in (False, True):
                for sample in info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True,
                                                      training=training):
                    made, given = sample.constructor_input, sample.forward_input
                    theirs = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
                    for module in theirs.modules():
                        if isinstance(module, torch.nn.Dropout):
                            module.p = 0.0
                        if isinstance(module, torch.nn.MultiheadAttention):
                            module.dropout = 0.0
                        if isinstance(module, torch.nn.TransformerEncoder):
                            module.use_nested_tensor = False  # docs/torch.md: where padding comes out as 0
                    ours = headwise.torch.convert(copy.deepcopy(theirs))
                    exact = copy.deepcopy(theirs).double()
                    for grad in ((False, True) if not training else (True,)):
                        with torch.set_grad_enabled(grad):
                            check(info.name, ours, exact, (given.args, given.kwargs), dtype)


def main():
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    attention_samples()
    module_samples()
    for reason, n in skipped.items():
        print(f"{reason} ({n})")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {sum(skipped.values())} skipped")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
