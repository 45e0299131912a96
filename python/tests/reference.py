"""Attention by its definition, in float64."""
import numpy as np


def attention(q, k, v, bias=0.0, scale=None):
    """q (..., T_q, d), k (..., T_k, d), v (..., T_k, d_v); bias broadcasts to the scores, -inf hides. The output and the
    weights; a query that sees no key gives 0."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    scores = scale * (q @ np.swapaxes(k, -1, -2)) + bias
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(np.isinf(top), 0.0, top))
    total = e.sum(-1, keepdims=True)
    weights = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    return weights @ v, weights


def bias_of(allowed):
    return np.where(allowed, 0.0, -np.inf)


def module(state, num_heads, query, key, value, bias=0.0):
    """(B, T, E) inputs through the default module's parameters; the output and the weights per head."""
    w, b = state["in_proj_weight"].astype(np.float64), state["in_proj_bias"].astype(np.float64)

    def heads(x, part):
        rows = slice(part * len(w) // 3, (part + 1) * len(w) // 3)
        y = x.astype(np.float64) @ w[rows].T + b[rows]
        return y.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2)

    out, weights = attention(heads(query, 0), heads(key, 1), heads(value, 2), bias)
    joined = out.swapaxes(1, 2).reshape(*query.shape)
    return joined @ state["out_proj.weight"].astype(np.float64).T + state["out_proj.bias"], weights
