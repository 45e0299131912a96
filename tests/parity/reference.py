"""Attention by its definition, in float64, with the answers that headwise gives where torch has several.

Nothing here calls torch's attention functions: generate.py compares the two wherever torch's answer is one.
"""
import math

import torch

NEG_INF = float("-inf")


class Rows:
    """What softmax attention gives for each query row."""

    def __init__(self, output, scale, weights, row_max, row_sum, sees_nan):
        self.output = output      # (..., T_q, d_v)
        self.scale = scale        # (..., T_q): the largest sum of |p v| in the row, what errors are relative to
        self.weights = weights    # (..., T_q, T_k)
        self.row_max = row_max    # (..., T_q)
        self.row_sum = row_sum    # (..., T_q)
        self.sees_nan = sees_nan  # (..., T_q): NaN in a query or in a key or value that the row may see


def attend(q, k, v, bias, scale, v_size=None):
    """q (..., T_q, d), k (..., T_k, d), v (..., T_k, d_v), all of one head count; bias (..., T_q, T_k), where -inf
    hides a key. A hidden key or value is absent, even if it is NaN; a row that sees no key gives 0. v_size: how large
    the values count in a row's scale, |v| where not given."""
    allowed = bias != NEG_INF
    scores = torch.where(allowed, torch.matmul(q, k.transpose(-1, -2)) * scale + bias, NEG_INF)
    allowed = allowed.expand(scores.shape)
    if scores.shape[-1] == 0:
        row_max = torch.full(scores.shape[:-1], NEG_INF, dtype=torch.float64)
    else:
        row_max = scores.amax(-1)
    shift = torch.where(row_max == NEG_INF, 0.0, row_max).unsqueeze(-1)
    e = torch.where(allowed, torch.exp(scores - shift), 0.0)
    row_sum = e.sum(-1)
    weights = torch.where(row_sum.unsqueeze(-1) == 0, 0.0, e / row_sum.unsqueeze(-1))
    clean = torch.nan_to_num(v, nan=0.0, posinf=0.0, neginf=0.0)
    output = torch.matmul(weights, clean)
    size = torch.matmul(weights, clean.abs() if v_size is None else v_size)
    bad_value = torch.matmul(allowed.double(), (~torch.isfinite(v)).double()) > 0
    output = torch.where(bad_value, math.nan, output)
    row_scale = size.amax(-1) if size.shape[-1] else torch.zeros(size.shape[:-1], dtype=torch.float64)
    return Rows(output, row_scale, weights, row_max, row_sum, torch.isnan(output).any(-1))


def mask_to_bias(mask, kind):
    """keep: true takes part; ignore: true does not; bias: added as it is."""
    if kind == "bias":
        return mask.double()
    hidden = mask if kind == "ignore" else ~mask
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(hidden, NEG_INF)


def causal_bias(T_q, T_k, align):
    offset = T_k - T_q if align == "bottom_right" else 0
    later = torch.arange(T_k) > torch.arange(T_q).unsqueeze(1) + offset
    return torch.zeros(T_q, T_k, dtype=torch.float64).masked_fill(later, NEG_INF)


def repeat_heads(x, n_heads):
    """Query head h reads head h // (n_heads / n_kv_heads)."""
    if x.dim() < 3 or x.shape[-3] == 0:
        return x
    return x.repeat_interleave(n_heads // x.shape[-3], dim=-3)


class ModuleRows:
    def __init__(self, output, scale, weights):
        self.output = output    # (B, T_q, E)
        self.scale = scale      # (B, T_q)
        self.weights = weights  # (B, n_heads, T_q, S)


def project(x, weight, bias):
    y = torch.matmul(x, weight.T)
    return y if bias is None else y + bias


def projected_size(x, weight, bias):
    """How large the sums of a projection are: |y|, or the root of the terms' squares where they cancel to less."""
    squares = project(x**2, weight**2, None if bias is None else bias**2)
    return torch.maximum(project(x, weight, bias).abs(), squares.sqrt()).nan_to_num(0.0)


def module_forward(query, key, value, p, o, bias):
    """Batch-first inputs; p: q, k, v, out weights and biases (None: without) and bias_k, bias_v, in float64;
    o: n_heads, n_kv_heads, d_head, zero_attn; bias (B, n_heads or 1, T_q, T_k), where -inf hides a key."""
    B, T_q = query.shape[:2]

    def heads(x, n):
        return x.reshape(B, x.shape[1], n, o.d_head).transpose(1, 2)

    q = heads(project(query, p.q_weight, p.q_bias), o.n_heads)
    k = heads(project(key, p.k_weight, p.k_bias), o.n_kv_heads)
    v = heads(project(value, p.v_weight, p.v_bias), o.n_kv_heads)
    v_size = heads(projected_size(value, p.v_weight, p.v_bias), o.n_kv_heads)
    extra = 0
    if p.bias_k is not None:  # one learned key and value, after the projected ones
        k = torch.cat([k, heads(p.bias_k.reshape(1, 1, -1).expand(B, 1, -1), o.n_kv_heads)], dim=2)
        last = heads(p.bias_v.reshape(1, 1, -1).expand(B, 1, -1), o.n_kv_heads)
        v, v_size = torch.cat([v, last], dim=2), torch.cat([v_size, last.abs()], dim=2)
        extra += 1
    if o.zero_attn:
        zero = torch.zeros(B, o.n_kv_heads, 1, o.d_head, dtype=torch.float64)
        k, v, v_size = (torch.cat([x, zero], dim=2) for x in (k, v, v_size))
        extra += 1
    bias = torch.cat([bias, torch.zeros(*bias.shape[:3], extra, dtype=torch.float64)], dim=3)
    k, v, v_size = (repeat_heads(x, o.n_heads) for x in (k, v, v_size))
    rows = attend(q, k, v, bias, 1 / math.sqrt(o.d_head), v_size)
    joined = rows.output.transpose(1, 2).reshape(B, T_q, o.n_heads * o.d_head)
    output = project(joined, p.out_weight, p.out_bias)
    # Each head's own scale, spread over its columns, through |W_o|: what the last sum adds up.
    size = rows.scale.transpose(1, 2).repeat_interleave(o.d_head, dim=2)
    bound = project(size, p.out_weight.abs(), None if p.out_bias is None else p.out_bias.abs())
    scale = bound.amax(-1) if bound.shape[-1] else torch.zeros(B, T_q, dtype=torch.float64)
    return ModuleRows(output, scale, rows.weights)
