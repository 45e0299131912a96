"""Cases of scaled_dot_product_attention."""
import math

import torch
import torch.nn.functional as F

import reference
from drawing import (DTYPES, LENGTHS, LONG_LENGTHS, NEG_INF, SMALL_LENGTHS, SMALL_WIDTHS, WIDTHS, Case, agree,
                     expectation, layout, mask_values, repeat_along_a_dim, values)


def draw_shapes(rng, small):
    """Shapes of q, k, v; query heads per kv head. Ranks 2 to 5, some dims 1 or missing where they broadcast."""
    rank = rng.choice([2, 3, 4, 4, 4, 5])
    lengths, widths = (SMALL_LENGTHS, SMALL_WIDTHS) if small else (LENGTHS, WIDTHS)
    T_q, T_k = rng.choice(lengths), rng.choice(lengths)
    if rng.random() < 0.3:
        T_q = T_k
    d = rng.choice(widths) if rng.random() < 0.97 else 0
    d_v = d if d and rng.random() < 0.5 else rng.choice(widths)
    if not small and rng.random() < 0.05:
        T_q, T_k, d, d_v = rng.choice([1, 3, 33]), rng.choice(LONG_LENGTHS), rng.choice([4, 17]), rng.choice([3, 8])
        rank = rng.choice([2, 3])
    outer = [rng.choice([1, 2, 2] if small else [1, 2, 2, 3]) for _ in range(rank - 3)]
    if outer and rng.random() < 0.02:
        outer[0] = 0
    group, kv_heads = rng.choice([1, 1, 1, 2, 3]), rng.choice([1, 2] if small else [1, 2, 3])
    if rank == 2:
        return (T_q, d), (T_k, d), (T_k, d_v), 1
    q, k, v = (outer + [group * kv_heads]), (outer + [kv_heads]), (outer + [kv_heads])
    if rng.random() < 0.3:
        q, k, v = broadcast_dims(rng, q, k, v, group)
    return (*q, T_q, d), (*k, T_k, d), (*v, T_k, d_v), group


def broadcast_dims(rng, *shapes_and_group):
    """Makes leading dims 1, or leaves them out from the left."""
    *shapes, group = shapes_and_group
    drawn = []
    for shape in shapes:
        shape = list(shape)
        for i in range(len(shape) - (1 if group > 1 else 0)):  # grouped heads have to stay
            if rng.random() < 0.3:
                shape[i] = 1
        while len(shape) > (1 if group > 1 else 0) and rng.random() < 0.15:
            shape.pop(0)
        drawn.append(shape)
    return drawn


def mask_shape(rng, scores_shape):
    """Anything of rank 2 or more that broadcasts to the scores."""
    rank = rng.randint(2, len(scores_shape))
    return tuple(1 if rng.random() < 0.25 else n for n in scores_shape[len(scores_shape) - rank:])


def draw_scale(rng, d):
    if d == 0:
        return 1.0
    return rng.choice([None, None, None, 0.0, -1 / math.sqrt(d), 0.3 / math.sqrt(d), 1 / d])


def put_poison(rng, q, k, v, bias):
    """NaN in one key or value, which only rows that see it may notice; NaN or inf in all that no row sees."""
    hidden = (bias == NEG_INF).flatten(0, -2).all(0)
    for x in (k, v):
        if x.numel():
            x[..., hidden, :] = rng.choice([math.nan, math.inf, -math.inf])
            if rng.random() < 0.6:
                x[..., rng.randrange(x.shape[-2] // 2, x.shape[-2]), :] = math.nan
    if q.numel() and rng.random() < 0.2:
        q[..., rng.randrange(q.shape[-2]), 0] = math.nan


def torch_sdpa(q, k, v, masks, causal, bias, scale, group):
    """torch's own answer in float64, with the arguments as torch would be given them where it has them."""
    scale = 1.0 if q.shape[-1] == 0 else scale
    arguments = {"scale": scale, "enable_gqa": group > 1}
    # Its causal flag writes -inf before it scales: with a scale of 0 or less rows become NaN.
    if causal == "top_left" and not masks and (scale is None or scale > 0):
        arguments["is_causal"] = True
    elif masks or causal != "none":
        arguments["attn_mask"] = bias
        if len(masks) == 1 and causal == "none":
            kind, mask = masks[0]
            arguments["attn_mask"] = {"keep": mask, "ignore": ~mask if mask.dtype == torch.bool else None,
                                      "bias": mask.double()}[kind]
    # It adds the mask in place, and its fused kernel takes the batch from q: q must not be what broadcasts.
    leading = torch.broadcast_shapes(q.shape[:-2], bias.shape[:-2],
                                     (*k.shape[:-3], 1) if group > 1 else k.shape[:-2],
                                     (*v.shape[:-3], 1) if group > 1 else v.shape[:-2])
    q = q.expand(*leading, *q.shape[-2:])
    return F.scaled_dot_product_attention(q, k, v, **arguments)


def make(rng, dtype_name, small):
    dtype = DTYPES[dtype_name]
    case = Case("sdpa", dtype_name)
    q_shape, k_shape, v_shape, group = draw_shapes(rng, small)
    q = values(q_shape, dtype, rng.choice([1.0, 1.0, 0.3]))
    k = values(k_shape, dtype)
    v = values(v_shape, dtype, 1.0, rng.choice([0.0, 0.0, 2.0]))
    repeated = {name: repeat_along_a_dim(rng, x) for name, x in (("q", q), ("k", k), ("v", v))}
    causal = rng.choice(["none", "none", "none", "top_left", "bottom_right"])
    scale = draw_scale(rng, q_shape[-1])
    poisoned = rng.random() < 0.12 and not any(dim is not None for dim in repeated.values())

    T_q, T_k = q_shape[-2], k_shape[-2]
    kv_leading = torch.broadcast_shapes(k_shape[:-2], v_shape[:-2])
    if group > 1:
        kv_leading = (*kv_leading[:-1], q_shape[-3])
    scores_shape = (*torch.broadcast_shapes(q_shape[:-2], kv_leading), T_q, T_k)
    bias = torch.zeros(1, 1, dtype=torch.float64).expand(T_q, T_k)
    masks = []
    for name in ("mask", "second_mask"):
        if rng.random() > {"mask": 0.6, "second_mask": 0.25}[name]:
            break
        kind = rng.choice(["keep", "ignore", "bias", "bias"])
        mask_dtype = torch.float32 if dtype.itemsize == 2 and rng.random() < 0.3 else dtype
        mask = mask_values(rng, mask_shape(rng, scores_shape), kind, mask_dtype)
        case.options[name] = kind
        case.put(name, mask, layout(rng, mask.dim(), repeat_along_a_dim(rng, mask)))
        masks.append((kind, mask))
        bias = bias + reference.mask_to_bias(mask, kind)
    if causal != "none":
        bias = bias + reference.causal_bias(T_q, T_k, causal)

    if poisoned:
        put_poison(rng, q, k, v, bias)
    case.options.update(causal=causal, group=group, gqa=1 if group > 1 else rng.randint(0, 1))
    if scale is not None:
        case.options["scale"] = float(scale).hex()
    for name, x in (("q", q), ("k", k), ("v", v)):
        case.put(name, x, layout(rng, x.dim(), repeated[name]))

    wide = [q.double(), k.double(), v.double()]
    used = scale if scale is not None else 1 / math.sqrt(q_shape[-1])
    repeated = [reference.repeat_heads(x, q_shape[-3]) if group > 1 else x for x in wide[1:]]
    leading = scores_shape[:-2]
    rows = reference.attend(wide[0].expand(*leading, T_q, q_shape[-1]), *repeated, bias, used)
    put_expectations(rng, case, rows, leading, dtype)
    if not poisoned and rows.output.numel():  # of nothing, torch has other shapes
        agree(rows.output, torch_sdpa(*wide, masks, causal, bias, scale, group), case.text())
        case.torch_checked = True
    return case


def put_expectations(rng, case, rows, leading, dtype):
    case.put("expected.output", expectation(rows.output, dtype))
    case.put("scale.output", rows.scale.float())
    plain = not (torch.isnan(rows.row_max).any() or (rows.row_max < -1e30).logical_and(rows.row_max != NEG_INF).any())
    if rng.random() < 0.3 and plain:  # f32 beside 16 bits
        case.put("expected.row_max", rows.row_max)
        case.put("expected.row_sum", rows.row_sum)
        case.put("expected.log_sum_exp", rows.row_max + torch.log(rows.row_sum))
    if rng.random() < 0.3 and plain:
        case.put("expected.weights", expectation(rows.weights, dtype))
        if leading:
            case.put("expected.average_weights", expectation(rows.weights.mean(-3), dtype))
