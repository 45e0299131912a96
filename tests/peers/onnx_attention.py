#!/usr/bin/env python3
"""The node cases of ONNX's Attention (opsets 23 to 25) as calls of headwise.

    HEADWISE_BUILD=build/dev python tests/peers/onnx_attention.py

Past keys, windows and offsets of the diagonal become longer arrays and masks here; what headwise computes is the
attention. Cases that want what it does not have are listed with the reason.
"""
import math
import sys
import warnings

import support  # noqa: F401

import numpy as np
import onnx
import torch
from onnx.backend.test.case.node import collect_testcases

import headwise.torch

BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}  # of a value: the cases' own tolerance


class Missing(Exception):
    """What headwise does not have."""


def tensor(array):
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def heads(x, n):
    """(B, T, n * d) as (B, n, T, d)."""
    return x if x.dim() == 4 else x.unflatten(-1, (n, -1)).transpose(1, 2)


def visible(T_q, total, offset, attributes):
    """Where causality and windows let the queries look; offset is where they stand, one for each sample or for all."""
    left, right = attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)
    at = offset.reshape(-1, 1, 1, 1) + torch.arange(T_q).reshape(1, 1, -1, 1)
    key = torch.arange(total)
    allowed = torch.ones(1, 1, T_q, total, dtype=torch.bool)
    if attributes.get("is_causal", 0):
        allowed = allowed & (key <= at)
    if left >= 0:
        allowed = allowed & (key >= at - left)
    if right >= 0:
        allowed = allowed & (key <= at + right)
    return allowed


def merged(attn_mask, allowed, total):
    if attn_mask is None:
        return allowed
    if attn_mask.dim() == 1:
        attn_mask = attn_mask.unsqueeze(0)
    missing = total - attn_mask.shape[-1]
    if attn_mask.dtype == torch.bool:
        return torch.nn.functional.pad(attn_mask, (0, missing), value=False) & allowed
    return torch.nn.functional.pad(attn_mask, (0, missing), value=-math.inf).masked_fill(~allowed, -math.inf)


def run(node, inputs):
    """The node's outputs by name; raises Missing."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if attributes.get("softcap", 0):
        raise Missing("softcap")
    mode = attributes.get("qk_matmul_output_mode", 0)
    names = list(node.output) + [""] * (4 - len(node.output))
    if names[3] and mode != 3:
        raise Missing("scores as an output: only weights (mode 3) are")
    given = dict(zip(("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"),
                     (inputs.get(name) for name in node.input)))
    q = heads(given["Q"], attributes.get("q_num_heads"))
    k, v = (heads(given[name], attributes.get("kv_num_heads")) for name in "KV")
    if not q.dtype == k.dtype == v.dtype:
        raise Missing("inputs of different dtypes")
    offset = torch.zeros(1, dtype=torch.int64)
    if given.get("past_key") is not None:
        offset = offset + given["past_key"].shape[2]
        k, v = torch.cat([given["past_key"], k], 2), torch.cat([given["past_value"], v], 2)
    total, nonpad = k.shape[2], given.get("nonpad_kv_seqlen")
    if nonpad is not None:
        offset = nonpad - q.shape[2]
    allowed = visible(q.shape[2], total, offset, attributes)
    if nonpad is not None:
        allowed = allowed & (torch.arange(total) < nonpad.reshape(-1, 1, 1, 1))
    mask = merged(given.get("attn_mask"), allowed, total)
    y, weights = headwise.torch.attention_with_weights(q, k, v, mask, scale=attributes.get("scale"),
                                                       enable_gqa=q.shape[1] != k.shape[1])
    plain = headwise.torch.scaled_dot_product_attention(q, k, v, mask, scale=attributes.get("scale"),
                                                        enable_gqa=q.shape[1] != k.shape[1])
    assert torch.equal(plain, y), "weights change the output"
    if given["Q"].dim() == 3:
        y = y.transpose(1, 2).flatten(2)
    return {name: x for name, x in zip(names, (y, k, v, weights)) if name}


def compare(found, expected):
    assert tuple(found.shape) == expected.shape, (found.shape, expected.shape)
    expected = tensor(expected)
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    bound = BOUNDS[found.dtype]
    worst = (found.double() - expected.double()).abs().nan_to_num(math.inf).max().item() if found.numel() else 0
    assert worst <= bound * (1 + expected.double().abs().max().item()), worst


def main():
    warnings.simplefilter("ignore")  # of the other cases, which are made too
    passed, failed, missing = 0, 0, {}
    for case in collect_testcases("Attention"):
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type != "Attention":
            continue  # the same case, written out in other operators
        node = nodes[0]
        try:
            for inputs, outputs in case.data_sets:
                names = [x.name for x in case.model.graph.input]
                found = run(node, {name: tensor(np.asarray(x)) for name, x in zip(names, inputs)})
                for graph_output, expected in zip(case.model.graph.output, outputs):
                    compare(found[graph_output.name], np.asarray(expected))
            passed += 1
        except Missing as reason:
            missing.setdefault(str(reason), []).append(case.name)
        except Exception as error:
            failed += 1
            print(f"FAILED {case.name}: {type(error).__name__}: {error}")
    for reason, names in missing.items():
        print(f"{reason}:\n  " + "\n  ".join(names))
    print(f"{passed} passed, {failed} failed, {sum(map(len, missing.values()))} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
