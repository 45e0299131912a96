"""Seeded inputs that every contender makes for itself, and the right answer for some of their rows, in double."""
import math

import ml_dtypes
import numpy as np

from cases import Attention, AttentionTraining, ModuleTraining

DTYPES = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64), "bf16": np.dtype(ml_dtypes.bfloat16),
          "f16": np.dtype(np.float16)}
ALIGNMENT = 64  # what the peers' own tensors have
CHECKED_ROWS = 48


def aligned(shape, dtype):
    """An empty array on a boundary of 64 bytes, so that nobody has to copy it."""
    dtype = np.dtype(dtype)
    n_bytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(n_bytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start:start + n_bytes].view(dtype).reshape(shape)


def aligned_copy(array, dtype=None):
    copy = aligned(array.shape, dtype or array.dtype)
    copy[...] = array
    return copy


def _normal(rng, shape, dtype):
    return aligned_copy(rng.standard_normal(shape, np.float32), DTYPES[dtype])


def _mask(case, rng):
    shape = case.mask_shape
    if case.mode == "bias":
        return _normal(rng, shape, case.dtype)
    mask = aligned(shape, np.bool_)
    if case.mode == "padded":  # between half and all of the keys, another number for each sequence
        for b in range(case.B):
            mask[b, 0, 0] = np.arange(case.T_k) < rng.integers((case.T_k + 1) // 2, case.T_k + 1)
        return mask
    mask[...] = rng.random(shape, np.float32) < 0.75
    mask[0, 0, np.arange(case.T_q), np.arange(case.T_q) % case.T_k] = True  # each query sees a key
    return mask


def attention_inputs(case):
    """q, k, v, and mask where the mode has one; the same in every process."""
    rng = np.random.default_rng(0)
    inputs = {"q": _normal(rng, (case.B, case.n_heads, case.T_q, case.d_head), case.dtype)}
    for name in "kv":
        inputs[name] = _normal(rng, (case.B, case.kv_heads, case.T_k, case.d_head), case.dtype)
    inputs["mask"] = _mask(case, rng) if case.mask_shape else None
    if isinstance(case, AttentionTraining):
        inputs["d_o"] = _normal(rng, (case.B, case.n_heads, case.T_q, case.d_head), case.dtype)
    return inputs


def module_inputs(case):
    """x and the parameters under torch's names, of the size that torch draws."""
    rng = np.random.default_rng(0)
    E = case.embed_dim

    def uniform(*shape):
        bound = math.sqrt(3.0 / E)
        return aligned_copy(rng.uniform(-bound, bound, shape), DTYPES[case.dtype])

    found = {"x": _normal(rng, (case.B, case.T, E), case.dtype),
             "in_proj_weight": uniform(3 * E, E), "in_proj_bias": uniform(3 * E),
             "out_proj.weight": uniform(E, E), "out_proj.bias": uniform(E)}
    if isinstance(case, ModuleTraining):
        found["d_output"] = _normal(rng, (case.B, case.T, E), case.dtype)
    return found


def make_inputs(case):
    return attention_inputs(case) if isinstance(case, Attention) else module_inputs(case)


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _some(shape, n):
    """Indices of n random rows, the first and the last among them."""
    size = math.prod(shape)
    flat = np.random.default_rng(1).choice(size, min(n, size), replace=False)
    flat[0], flat[-1] = 0, size - 1
    return np.unravel_index(np.unique(flat), shape)


def _score_terms(case, mask, b, h, t):
    """What is added to the scores of one query: 0 or -inf for boolean masks."""
    if case.mode == "causal":
        return np.where(np.arange(case.T_k) <= t, 0.0, -np.inf)
    if mask is None:
        return 0.0
    row = mask[b % mask.shape[0], h % mask.shape[1], t % mask.shape[2]]
    return row.astype(np.float64) if case.mode == "bias" else np.where(row, 0.0, -np.inf)


def _attention_answer(case, inputs):
    index = _some((case.B, case.n_heads, case.T_q), CHECKED_ROWS)
    group = case.n_heads // case.kv_heads
    rows = []
    for b, h, t in zip(*index):
        q = inputs["q"][b, h, t].astype(np.float64)
        k, v = (inputs[name][b, h // group].astype(np.float64) for name in "kv")
        weights = softmax(k @ q / math.sqrt(case.d_head) + _score_terms(case, inputs["mask"], b, h, t))
        rows.append(weights @ v)
    return {"output": (index, np.array(rows))}


def _training_answer(case, inputs):
    """All rows of the last head: those of dk and dv are sums over all queries."""
    if case.kv_heads != case.n_heads:
        raise ValueError("grouped heads have no answer yet")
    b, h = case.B - 1, case.n_heads - 1
    q, k, v, d_o = (inputs[name][b, h].astype(np.float64) for name in ("q", "k", "v", "d_o"))
    scale = 1 / math.sqrt(case.d_head)
    terms = np.array([np.broadcast_to(_score_terms(case, inputs["mask"], b, h, t), case.T_k) for t in range(case.T_q)])
    p = softmax(q @ k.T * scale + terms)
    dp = d_o @ v.T
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
    return {name: ((b, h), rows) for name, rows in (
        ("output", p @ v), ("dq", ds @ k), ("dk", ds.T @ q), ("dv", p.T @ d_o))}


def _module_answer(case, inputs):
    x, w, bias, w_out, bias_out = (inputs[name].astype(np.float64) for name in (
        "x", "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"))
    E, d = case.embed_dim, case.embed_dim // case.n_heads
    index = _some((case.B, case.T), CHECKED_ROWS)
    q = (x[index] @ w[:E].T + bias[:E]).reshape(-1, case.n_heads, d)
    k, v = ((x @ w[i * E:(i + 1) * E].T + bias[i * E:(i + 1) * E]).reshape(case.B, case.T, case.n_heads, d)
            for i in (1, 2))
    outputs, averages = [], []
    for row, b in enumerate(index[0]):
        weights = softmax(np.einsum("hd,thd->ht", q[row], k[b]) / math.sqrt(d))
        outputs.append(np.einsum("ht,thd->hd", weights, v[b]).reshape(E) @ w_out.T + bias_out)
        averages.append(weights.mean(0))
    answer = {"output": (index, np.array(outputs))}
    if case.weights:
        answer["weights"] = (index, np.array(averages))
    return answer


def _module_training_answer(case, inputs):
    """Some rows of the gradients of x and of the input projections' table, which need all the others."""
    x, w, bias, w_out, d_output = (inputs[name].astype(np.float64) for name in (
        "x", "in_proj_weight", "in_proj_bias", "out_proj.weight", "d_output"))
    E, d = case.embed_dim, case.embed_dim // case.n_heads

    def heads(rows):
        return rows.reshape(case.B, case.T, case.n_heads, d).transpose(0, 2, 1, 3)

    q, k, v = (heads(part) for part in np.split(x @ w.T + bias, 3, axis=-1))
    d_o = heads(d_output @ w_out)
    d_parts = np.empty((3, case.B, case.n_heads, case.T, d))
    for b in range(case.B):
        for h in range(case.n_heads):
            p = softmax(q[b, h] @ k[b, h].T / math.sqrt(d))
            dp = d_o[b, h] @ v[b, h].T
            ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / math.sqrt(d)
            d_parts[:, b, h] = ds @ k[b, h], ds.T @ q[b, h], p.T @ d_o[b, h]
    d_projected = d_parts.transpose(1, 3, 0, 2, 4).reshape(case.B, case.T, 3 * E)
    rows, columns = _some((case.B, case.T), CHECKED_ROWS), _some((3 * E,), CHECKED_ROWS)
    return {"d_x": (rows, d_projected[rows] @ w),
            "d_in_proj_weight": (columns, np.einsum("btn,bte->ne", d_projected[..., columns[0]], x))}


def right_answer(case):
    """{"output": (index of some rows, these rows)}, "weights" where the module returns them, gradients in training."""
    inputs = make_inputs(case)
    if isinstance(case, AttentionTraining):
        return _training_answer(case, inputs)
    if isinstance(case, ModuleTraining):
        return _module_training_answer(case, inputs)
    return _attention_answer(case, inputs) if isinstance(case, Attention) else _module_answer(case, inputs)


def error_of(found, answer):
    """The largest difference in the checked rows, relative to their largest number; inf where one is NaN."""
    worst = 0.0
    for name, (index, expected) in answer.items():
        rows = np.asarray(found[name])[index].astype(np.float64)
        error = np.abs(rows - expected).max() / np.abs(expected).max()
        worst = max(worst, float(error) if np.isfinite(error) else math.inf)
    return worst
