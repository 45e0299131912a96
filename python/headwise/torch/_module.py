"""nn.MultiheadAttention by headwise: the module, its operator for inference, and convert()."""
import math
import sys
import weakref

import torch
from torch.nn import functional as F

from .. import _core
from ._attention import attention_with_weights, needs_grad, scaled_dot_product_attention
from ._operators import is_plain, is_transformed

_library = torch.library.Library("headwise", "FRAGMENT")
# Inference, without dropout: projections and attention in one call. Weights are empty unless need_weights.
_library.define(
    "multi_head_attention(Tensor query, Tensor key, Tensor value, int num_heads, Tensor? in_proj_weight, "
    "Tensor? q_proj_weight, Tensor? k_proj_weight, Tensor? v_proj_weight, Tensor? in_proj_bias, Tensor? bias_k, "
    "Tensor? bias_v, Tensor out_proj_weight, Tensor? out_proj_bias, bool add_zero_attn, Tensor? key_padding_mask, "
    "Tensor? attn_mask, bool need_weights, bool average_attn_weights, bool is_causal, bool batch_first) "
    "-> (Tensor, Tensor)")
_op = torch.ops.headwise.multi_head_attention

_NAMES = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k", "bias_v",
          "out_proj.weight", "out_proj.bias")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


# Step by step --------------------------------------------------------------------------------------------------------

def _merged_mask(key_padding_mask, attn_mask, is_causal, B, n_heads, T_q, T_k, appended, device):
    """One mask as scaled_dot_product_attention wants it, True where a key takes part, and whether it is causal."""
    if attn_mask is not None:
        shapes = [(T_q, T_k), (B * n_heads, T_q, T_k), (B, 1, T_q, T_k), (B, n_heads, T_q, T_k)]
        if tuple(attn_mask.shape) not in shapes:
            raise ValueError(f"attn_mask: found shape {tuple(attn_mask.shape)}, expected {shapes[0]} or {shapes[1]}")
        if attn_mask.dim() == 3:
            attn_mask = attn_mask.reshape(B, n_heads, T_q, T_k)
        is_causal = False  # beside a mask it is a hint
    if key_padding_mask is not None:
        if key_padding_mask.dim() == 1:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        if tuple(key_padding_mask.shape) != (B, T_k):
            raise ValueError(f"key_padding_mask: found shape {tuple(key_padding_mask.shape)}, expected {(B, T_k)}")
        key_padding_mask = key_padding_mask[:, None, None, :]
    for name, mask in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
        if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
            raise TypeError(f"{name}: found dtype {mask.dtype}, expected bool, or a floating dtype")
    if is_causal and appended:  # the appended keys are always seen
        attn_mask = torch.ones(T_q, T_k, dtype=torch.bool, device=device).triu(1)
        is_causal = False
    masks = [mask for mask in (attn_mask, key_padding_mask) if mask is not None]
    if not masks:
        return None, is_causal
    if len(masks) == 2 and masks[0].dtype == masks[1].dtype == torch.bool:
        mask = masks[0] | masks[1]
    elif len(masks) == 2:
        added, other = masks if masks[0].dtype != torch.bool else masks[::-1]
        mask = added.masked_fill(other, -math.inf) if other.dtype == torch.bool else added + other
    else:
        mask = masks[0]
    if mask.dtype == torch.bool:
        mask = ~mask
    if appended:
        mask = F.pad(mask, (0, appended), value=mask.dtype == torch.bool)
    return mask, is_causal


def _project(query, key, value, in_proj_weight, separate, bias):
    E = query.shape[-1]
    if in_proj_weight is None:
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        return [F.linear(x, w, b) for x, w, b in zip((query, key, value), separate, biases)]
    if query is key and key is value:
        return F.linear(query, in_proj_weight, bias).chunk(3, -1)
    if key is value:
        q = F.linear(query, in_proj_weight[:E], None if bias is None else bias[:E])
        return q, *F.linear(key, in_proj_weight[E:], None if bias is None else bias[E:]).chunk(2, -1)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    return [F.linear(x, w, b) for x, w, b in zip((query, key, value), in_proj_weight.chunk(3), biases)]


def _append_steps(x, bias, add_zero_attn, time):
    """bias_k or bias_v, then zeros, behind the last step of x, whose other outer dim is the batch."""
    shape = [*x.shape]
    shape[time] = 1
    parts = [x]
    if bias is not None:
        parts.append(bias.to(x.dtype).reshape(1, 1, -1).expand(shape))
    if add_zero_attn:
        parts.append(x.new_zeros(shape))
    return torch.cat(parts, time) if len(parts) > 1 else x


def stepwise(query, key, value, num_heads, in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias,
             bias_k, bias_v, out_proj_weight, out_proj_bias, add_zero_attn, key_padding_mask, attn_mask, need_weights,
             average_attn_weights, is_causal, batch_first, dropout_p=0.0):
    """The module from torch's linear layers and our attention: what has gradients, and dropout."""
    q, k, v = _project(query, key, value, in_proj_weight, (q_proj_weight, k_proj_weight, v_proj_weight), in_proj_bias)
    unbatched = query.dim() == 2
    if unbatched:
        q, k, v = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
        batch_first = False
    batch, time = (0, 1) if batch_first else (1, 0)
    T_k, B = k.shape[time], q.shape[batch]
    k = _append_steps(k, bias_k, add_zero_attn, time)
    v = _append_steps(v, bias_v, add_zero_attn, time)
    mask, is_causal = _merged_mask(key_padding_mask, attn_mask, is_causal, B, num_heads, q.shape[time], T_k,
                                   k.shape[time] - T_k, query.device)
    # (B, n_heads, T, d_head), where it lies
    q, k, v = (x.unflatten(-1, (num_heads, -1)).permute(batch, 2, time, 3) for x in (q, k, v))
    weights = None
    if need_weights:
        output, weights = attention_with_weights(q, k, v, mask, dropout_p, is_causal)
        weights = weights.mean(1) if average_attn_weights else weights
        weights = weights.squeeze(0) if unbatched else weights
    else:
        output = scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)
    output = output.permute((0, 2, 1, 3) if batch_first else (2, 0, 1, 3)).flatten(2)
    output = F.linear(output, out_proj_weight, out_proj_bias)
    return output.squeeze(1) if unbatched else output, weights


# In one call ---------------------------------------------------------------------------------------------------------

class _Tables:
    """The parameters of a module as the kernels read them, for as long as they stay what they are."""

    def __init__(self, parameters, versions, num_heads, add_zero_attn, batch_first, key):
        present = [(n, p) for n, p in zip(_NAMES, parameters) if p is not None]
        self.packed = _core._PackedModule(num_heads, add_zero_attn, batch_first, [n for n, _ in present],
                                          [p for _, p in present])
        self.versions = versions
        self.references = [weakref.ref(p, lambda _: _tables.pop(key, None)) for _, p in present]


_tables = {}


def _packed_module(parameters, num_heads, add_zero_attn, batch_first):
    """The compiled module for these parameters, or None when nobody can tell whether they will have changed."""
    present = [p for p in parameters if p is not None]
    for p in present:
        if type(p) is not torch.nn.Parameter or p.is_inference():
            return None
    versions = [p._version for p in present]
    key = (*map(id, parameters), num_heads, add_zero_attn, batch_first)
    tables = _tables.get(key)
    if (tables is None or tables.versions != versions
            or any(r() is not p for r, p in zip(tables.references, present)) or not tables.packed.is_current(present)):
        tables = _tables[key] = _Tables(parameters, versions, num_heads, add_zero_attn, batch_first, key)
    return tables.packed


def _outputs(query, key, num_heads, bias_k, add_zero_attn, need_weights, average_attn_weights, batch_first):
    output = query.new_empty(query.shape)
    if not need_weights:
        return output, query.new_empty(0)
    time = 1 if batch_first and query.dim() == 3 else 0
    shape = (query.shape[time], key.shape[time] + (bias_k is not None) + add_zero_attn)
    if not average_attn_weights:
        shape = (num_heads, *shape)
    if query.dim() == 3:
        shape = (query.shape[1 - time], *shape)
    return output, query.new_empty(shape)


def _check_rank(query, key, value):
    if query.dim() == key.dim() == value.dim() == 3:
        return
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != query.dim() or x.dim() not in (2, 3):
            raise ValueError(f"{name}: found shape {tuple(x.shape)}, expected (T, width) or three dims, as query")


def fused(query, key, value, num_heads, *rest):
    parameters = rest[:9]
    add_zero_attn, key_padding_mask, attn_mask, need_weights, average_attn_weights, is_causal, batch_first = rest[9:]
    _check_rank(query, key, value)
    packed = _packed_module(parameters, num_heads, add_zero_attn, batch_first)
    if packed is None:
        output, weights = stepwise(query, key, value, num_heads, *rest)
        return output.contiguous(), weights if need_weights else query.new_empty(0)
    output, weights = _outputs(query, key, num_heads, rest[5], add_zero_attn, need_weights, average_attn_weights,
                               batch_first)
    packed.forward(query, key, value, key_padding_mask, attn_mask, average_attn_weights, is_causal, output,
                   weights if need_weights else None)
    return output, weights


def _fake(query, key, value, num_heads, *rest):
    _check_rank(query, key, value)
    return _outputs(query, key, num_heads, rest[5], rest[9], rest[12], rest[13], rest[15])


def _save_call(ctx, inputs, output):
    tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
    ctx.places = tensors
    ctx.inputs = [None if isinstance(x, torch.Tensor) else x for x in inputs]
    ctx.save_for_backward(*(inputs[i] for i in tensors))


def _backward(ctx, grad_output, grad_weights):
    """From the call once more, step by step. headwise.torch.MultiheadAttention never needs it."""
    inputs = list(ctx.inputs)
    with torch.enable_grad():
        for i, x in zip(ctx.places, ctx.saved_tensors):
            inputs[i] = x.detach().requires_grad_(ctx.needs_input_grad[i]) if x.is_floating_point() else x
        output, weights = stepwise(*inputs)
        wanted = [i for i in ctx.places if ctx.needs_input_grad[i]]
        outputs, grads = [output], [grad_output]
        if weights is not None and grad_weights is not None:
            outputs.append(weights)
            grads.append(grad_weights)
        found = torch.autograd.grad(outputs, [inputs[i] for i in wanted], grads, allow_unused=True)
    result = [None] * len(inputs)
    for i, grad in zip(wanted, found):
        result[i] = grad
    return tuple(result)


_library.impl("multi_head_attention", fused, "CPU")
torch.library.register_fake("headwise::multi_head_attention", _fake, lib=_library)
torch.library.register_autograd("headwise::multi_head_attention", _backward, setup_context=_save_call, lib=_library)


# The module ----------------------------------------------------------------------------------------------------------

def _seen_by_layers(module, args):
    """The hook without which nn.TransformerEncoderLayer would compute its attention by itself."""


def _is_ours(query, key, value, parameter):
    return (query.device.type in ("cpu", "meta") and query.dtype in DTYPES and parameter.dtype in DTYPES
            and not (query.is_nested or key.is_nested or value.is_nested))


class MultiheadAttention(torch.nn.MultiheadAttention):
    """torch.nn.MultiheadAttention by headwise: the same arguments, parameters and state_dict, with gradients.

    Without gradients, projections and attention are one call on tables packed from the parameters, which takes memory
    for them once more. A table is packed anew when a parameter has changed; changes that torch does not count (through
    Tensor.data) are seen when they reach a sampled element, one in every row. Parameters that are not nn.Parameters
    (parametrized, or of torch.func.functional_call), training and calls with gradients take torch's linear layers and
    headwise's attention. Calls on other devices and on nested tensors are torch's own.

    Where torch has several answers, headwise has one: a query that sees no key gives the output bias, and is_causal
    without attn_mask is causal.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.register_forward_pre_hook(_seen_by_layers)

    def forward(self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,
                average_attn_weights=True, is_causal=False):
        """query (T_q, B, embed_dim), with batch_first (B, T_q, embed_dim), or (T_q, embed_dim); key and value the same
        with T_k and kdim, vdim. Masks hide where they are True. Returns the output and the weights, or None.
        """
        out_proj = self.out_proj
        first = out_proj.weight
        if not _is_ours(query, key, value, first):
            return super().forward(query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights,
                                   is_causal)
        parameters = (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight,
                      self.in_proj_bias, self.bias_k, self.bias_v, out_proj.weight, out_proj.bias)
        arguments = (query, key, value, self.num_heads, *parameters, self.add_zero_attn, key_padding_mask, attn_mask,
                     need_weights, average_attn_weights, is_causal, self.batch_first)
        _check_widths(query, key, value, self)
        dropout_p = self.dropout if self.training else 0.0
        if (dropout_p > 0 or query.dtype != first.dtype or torch.is_autocast_enabled("cpu")
                or needs_grad(query, key, value, attn_mask, key_padding_mask, *parameters)
                or (not torch.compiler.is_compiling() and is_transformed())):
            return stepwise(*arguments, dropout_p)
        output, weights = (fused if is_plain(query, key, value, attn_mask, key_padding_mask) else _op)(*arguments)
        return output, weights if need_weights else None


def _check_widths(query, key, value, module):
    if (query.dim() == 3 and query is key and key is value and module._qkv_same_embed_dim
            and query.shape[2] == module.embed_dim):
        return
    _check_rank(query, key, value)
    widths = (module.embed_dim, module.kdim, module.vdim)
    for name, x, width in zip(("query", "key", "value"), (query, key, value), widths):
        if x.shape[-1] != width:
            raise ValueError(f"{name}: found width {x.shape[-1]} in shape {tuple(x.shape)}, expected {width}")


def convert(model):
    """Lets headwise compute the attention of a model, in place; returns the model.

    Every torch.nn.MultiheadAttention becomes a headwise.torch.MultiheadAttention: the same object, parameters, hooks
    and state_dict, also inside nn.TransformerEncoderLayer, whose own fast path no longer passes it by. A
    nn.TransformerEncoder no longer packs padded batches into nested tensors: outputs at padded places are values, not
    0. Subclasses of MultiheadAttention stay as they are. A model of transformers gets the attention implementation
    "headwise" (headwise.transformers.register).
    """
    for module in model.modules():
        if type(module) is torch.nn.MultiheadAttention:
            module.__class__ = MultiheadAttention
            module.register_forward_pre_hook(_seen_by_layers)
    for module in model.modules():
        if isinstance(module, torch.nn.TransformerEncoder):
            if any(isinstance(layer.self_attn, MultiheadAttention) for layer in module.layers
                   if isinstance(layer, torch.nn.TransformerEncoderLayer)):
                module.use_nested_tensor = False
    if "transformers" in sys.modules:
        from .. import transformers
        transformers.convert(model)
    return model
