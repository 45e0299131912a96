"""Cases of MultiheadAttention: forward with every option, and the parameters that a seed gives."""
import itertools
import math
import types
import warnings

import torch

import reference
from drawing import (DTYPES, LENGTHS, NEG_INF, SMALL_LENGTHS, Case, agree, expectation, layout, mask_values, values)


def draw_options(rng, small):
    heads = rng.choice([1, 2, 3, 4] if small else [1, 2, 3, 4, 5, 8])
    d_head = rng.choice([1, 2, 3, 3] if small else [1, 1, 2, 3, 4, 5, 8, 8, 13, 16, 17])
    o = types.SimpleNamespace(n_heads=heads, n_kv_heads=heads, d_head=d_head, embed_dim=heads * d_head)
    o.bias, o.bias_kv, o.zero_attn = rng.random() < 0.7, rng.random() < 0.25, rng.random() < 0.25
    o.kdim = o.vdim = None
    o.names = "torch"
    o.torch_has_it = True
    widths = [1, 3, 8] if small else [1, 3, 8, 17, 33, 65]
    if rng.random() < 0.3:
        o.kdim = rng.choice([None, o.embed_dim, *widths])
        o.vdim = rng.choice([None, o.embed_dim, *widths])
    elif rng.random() < 0.15:  # fewer kv heads, a free head size, the fused names: headwise's own
        o.torch_has_it = False
        o.n_kv_heads = rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
        o.d_head = rng.choice([1, 3, 4, 7])
    elif rng.random() < 0.2:
        o.names, o.bias, o.bias_kv = "fused", False, False
    return o


def draw_parameters(o, dtype):
    """By state_dict name, in torch's order. Sizes that keep every projection near unit variance."""
    E, q_rows, kv_rows = o.embed_dim, o.n_heads * o.d_head, o.n_kv_heads * o.d_head
    kdim, vdim = o.kdim or E, o.vdim or E

    def weight(rows, columns):
        return values((rows, columns), dtype, 1 / math.sqrt(columns))

    state = {}
    if o.names == "fused":
        state["qkv_proj.weight"] = weight(q_rows + 2 * kv_rows, E)
    elif kdim == E and vdim == E:
        state["in_proj_weight"] = weight(q_rows + 2 * kv_rows, E)
    else:
        state["q_proj_weight"] = weight(q_rows, E)
        state["k_proj_weight"] = weight(kv_rows, kdim)
        state["v_proj_weight"] = weight(kv_rows, vdim)
    if o.bias:
        state["in_proj_bias"] = values((q_rows + 2 * kv_rows,), dtype, 0.3)
    if o.bias_kv:
        state["bias_k"], state["bias_v"] = values((1, 1, kv_rows), dtype), values((1, 1, kv_rows), dtype)
    state["out_proj.weight"] = weight(E, q_rows)
    if o.bias:
        state["out_proj.bias"] = values((E,), dtype, 0.3)
    return state


def widen(state, o):
    """The parameters by what they do, in float64."""
    q_rows, kv_rows = o.n_heads * o.d_head, o.n_kv_heads * o.d_head
    wide = {name: x.double() for name, x in state.items()}
    p = types.SimpleNamespace(q_bias=None, k_bias=None, v_bias=None, out_bias=wide.get("out_proj.bias"),
                              bias_k=wide.get("bias_k"), bias_v=wide.get("bias_v"), out_weight=wide["out_proj.weight"])
    packed = wide.get("in_proj_weight", wide.get("qkv_proj.weight"))
    rows = [q_rows, kv_rows, kv_rows]
    if packed is not None:
        p.q_weight, p.k_weight, p.v_weight = packed.split(rows)
    else:
        p.q_weight, p.k_weight, p.v_weight = (wide[f"{n}_proj_weight"] for n in "qkv")
    if o.bias:
        p.q_bias, p.k_bias, p.v_bias = wide["in_proj_bias"].split(rows)
    return p


def draw_inputs(rng, o, dtype, small):
    """Batch-first query, key and value; self: all three are one tensor."""
    lengths = SMALL_LENGTHS if small else LENGTHS
    T_q, T_k, B = rng.choice(lengths), rng.choice(lengths), rng.choice([1, 2, 2] if small else [1, 2, 2, 3])
    if B == 2 and rng.random() < 0.03:
        B = 0
    kdim, vdim = o.kdim or o.embed_dim, o.vdim or o.embed_dim
    query = values((B, T_q, o.embed_dim), dtype)
    if kdim == vdim == o.embed_dim and rng.random() < 0.5:
        return query, query, query, True
    return query, values((B, T_k, kdim), dtype), values((B, T_k, vdim), dtype), False


def draw_masks(rng, o, dtype, sizes):
    """(name, kind, tensor as it is passed, bias it amounts to (B, n_heads or 1, T_q or 1, T_k)) for each mask."""
    B, T_q, T_k, unbatched = sizes
    masks = []
    if dtype.itemsize == 2 and rng.random() < 0.3:
        dtype = torch.float32  # both masks may be f32 beside 16 bits
    if rng.random() < 0.4:
        kind = rng.choice(["ignore", "ignore", "bias", "keep"])
        mask = mask_values(rng, (B, T_k), kind, dtype)
        bias = reference.mask_to_bias(mask, kind)[:, None, None, :]
        masks.append(("key_padding_mask", kind, mask[0] if unbatched else mask, bias))
    if rng.random() < 0.45:
        kind = rng.choice(["ignore", "ignore", "bias", "keep"])
        shapes = [(T_q, T_k), (B * o.n_heads, T_q, T_k)]
        if not unbatched:
            shapes += [(B, 1, T_q, T_k), (B, o.n_heads, T_q, T_k)]
        mask = mask_values(rng, rng.choice(shapes), kind, dtype)
        bias = reference.mask_to_bias(mask, kind)
        if mask.dim() == 2:
            bias = bias[None, None]
        elif mask.dim() == 3:
            bias = bias.reshape(B, o.n_heads, T_q, T_k)
        masks.append(("attn_mask", kind, mask, bias))
    return masks


def poison_padding(x, masks):
    """NaN in every key or value that the padding mask hides."""
    for name, _, _, bias in masks:
        if name == "key_padding_mask":
            x[bias[:, 0, 0, :] == NEG_INF] = math.nan


def for_torch(kind, mask):
    return {"ignore": mask, "keep": ~mask if mask.dtype == torch.bool else None, "bias": mask.double()}[kind]


def torch_module(o, state, inputs, masks, is_causal):
    """Output and weights per head from nn.MultiheadAttention in float64 (batch first)."""
    module = torch.nn.MultiheadAttention(
        o.embed_dim, o.n_heads, bias=o.bias, add_bias_kv=o.bias_kv, add_zero_attn=o.zero_attn, kdim=o.kdim,
        vdim=o.vdim, batch_first=True, dtype=torch.float64)
    renamed = {name.replace("qkv_proj.weight", "in_proj_weight"): x.double() for name, x in state.items()}
    module.load_state_dict(renamed)
    arguments = {}
    T_q, T_k = inputs[0].shape[1], inputs[1].shape[1]
    for name, kind, mask, bias in masks:
        if name == "key_padding_mask":
            arguments[name] = for_torch(kind, mask if mask.dim() == 2 else mask[None])
        elif mask.dim() == 4:  # torch's third dim: batch and heads
            arguments[name] = bias.expand(-1, o.n_heads, -1, -1).reshape(-1, T_q, T_k)
        else:
            arguments[name] = for_torch(kind, mask)
    if is_causal and "attn_mask" not in arguments:
        arguments["attn_mask"] = reference.causal_bias(T_q, T_k, "top_left")
    with warnings.catch_warnings():  # it warns where two masks differ in dtype
        warnings.simplefilter("ignore")
        output, _ = module(*inputs, need_weights=False, **arguments)
        _, weights = module(*inputs, average_attn_weights=False, **arguments)
    return output.detach(), weights.detach()


def check_with_torch(case, o, rows, call):
    """Where torch has the option and an answer: it gives NaN for a row without keys when weights are asked for."""
    output, weights = torch_module(o, *call)
    agree(rows.output, output, case.text())
    empty = (rows.weights.sum(-1, keepdim=True) == 0).expand(rows.weights.shape)
    agree(rows.weights, torch.where(empty, 0.0, weights), case.text() + " weights")
    case.torch_checked = True


def make(rng, dtype_name, small):
    dtype = DTYPES[dtype_name]
    case = Case("module", dtype_name)
    o = draw_options(rng, small)
    state = draw_parameters(o, dtype)
    query, key, value, one_tensor = draw_inputs(rng, o, dtype, small)
    unbatched = query.shape[0] == 1 and rng.random() < 0.6
    masks = draw_masks(rng, o, dtype, (query.shape[0], query.shape[1], key.shape[1], unbatched))
    is_causal = rng.random() < 0.2
    batch_first = rng.random() < 0.5
    poisoned = rng.random() < 0.3 and not one_tensor and any(m[0] == "key_padding_mask" for m in masks)
    if poisoned:
        poison_padding(key, masks)
        poison_padding(value, masks)

    T_q, T_k = query.shape[1], key.shape[1]
    bias = torch.zeros(query.shape[0], 1, T_q, T_k, dtype=torch.float64)
    for *_, added in masks:
        bias = bias + added
    if is_causal and not any(name == "attn_mask" for name, *_ in masks):
        bias = bias + reference.causal_bias(T_q, T_k, "top_left")
    inputs = (query.double(), key.double(), value.double())
    rows = reference.module_forward(*inputs, widen(state, o), o, bias)

    need_weights, average = rng.random() < 0.7, rng.random() < 0.5
    case.options.update(
        embed_dim=o.embed_dim, num_heads=o.n_heads, bias=int(o.bias), add_bias_kv=int(o.bias_kv),
        add_zero_attn=int(o.zero_attn), batch_first=int(batch_first), names=o.names, unbatched=int(unbatched),
        is_causal=int(is_causal), need_weights=int(need_weights), average=int(average), one_tensor=int(one_tensor),
        dropout=rng.choice([0.0, 0.0, 0.4]))
    case.options["train"] = int(case.options["dropout"] == 0.0 and rng.random() < 0.5)
    for name in ("kdim", "vdim"):
        if getattr(o, name) is not None:
            case.options[name] = getattr(o, name)
    if not o.torch_has_it:
        case.options.update(num_kv_heads=o.n_kv_heads, head_dim=o.d_head)

    def arrange(x):  # from batch first
        return x[0] if unbatched else x if batch_first else x.transpose(0, 1)

    for name, x in state.items():
        case.put("state." + name, x)
    for name, x in [("query", query)] if one_tensor else [("query", query), ("key", key), ("value", value)]:
        case.put(name, arrange(x), layout(rng, 2 if unbatched else 3))
    for name, kind, mask, _ in masks:
        case.options[name] = kind
        case.put(name, mask, layout(rng, mask.dim()))
    case.put("expected.output", expectation(arrange(rows.output), dtype))
    case.put("scale.output", arrange(rows.scale).float())
    if need_weights:
        weights = rows.weights.mean(1) if average else rows.weights
        case.put("expected.weights", expectation(weights[0] if unbatched else weights, dtype))
    if o.torch_has_it and not poisoned and query.numel() and key.numel():  # it cannot reshape nothing
        check_with_torch(case, o, rows, (state, inputs, masks, is_causal))
    return case


def init_combinations():
    """Every option that construction draws for, in every dtype."""
    widths = [(None, None), ("own", "own"), (3, None), (None, 7), (5, 2)]
    flags = [True, False]
    torchs = itertools.product(DTYPES, ["torch"], widths, flags, flags, flags)
    return [*torchs, *itertools.product(DTYPES, ["fused"], [(None, None)], [False], [False], flags)]


def make_init(rng, combination, small):
    """The parameters that manual_seed and construction give, and where they leave the generator."""
    dtype_name, names, (kdim, vdim), bias, bias_kv, zero_attn = combination
    heads = rng.choice([1, 2, 4])
    embed_dim = heads * rng.choice([1, 2, 3, 4] if small else [1, 2, 5, 16, 33])
    kdim, vdim = (embed_dim if width == "own" else width for width in (kdim, vdim))
    seed = rng.choice([0, 1, 42, 2**32 - 1, 2**32 + 5, rng.getrandbits(63)])
    case = Case("init", dtype_name)
    case.options.update(embed_dim=embed_dim, num_heads=heads, bias=int(bias), add_bias_kv=int(bias_kv),
                        add_zero_attn=int(zero_attn), names=names, seed=seed)
    torch.manual_seed(seed)
    if names == "fused":
        module = torch.nn.Module()
        module.qkv_proj = torch.nn.Linear(embed_dim, 3 * embed_dim, bias=False, dtype=DTYPES[dtype_name])
        module.out_proj = torch.nn.Linear(embed_dim, embed_dim, bias=False, dtype=DTYPES[dtype_name])
    else:
        module = torch.nn.MultiheadAttention(embed_dim, heads, bias=bias, add_bias_kv=bias_kv, kdim=kdim, vdim=vdim,
                                             add_zero_attn=zero_attn, dtype=DTYPES[dtype_name])
    case.options["next24"] = int(torch.empty(1, dtype=torch.int64).random_(0, 2**24))
    for name, width in (("kdim", kdim), ("vdim", vdim)):
        if width is not None:
            case.options[name] = width
    for name, x in module.state_dict().items():
        case.put("state." + name, x)
    case.options["order"] = ",".join(module.state_dict())
    case.torch_checked = True
    return case
