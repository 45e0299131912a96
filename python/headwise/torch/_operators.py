"""Attention as operators that torch knows: memory, fake tensors, gradients, vmap."""
import math

import torch

from .. import _core
from . import _math

_library = torch.library.Library("headwise", "FRAGMENT")
# Beside the output, each row's largest score and its sum of exp(score - largest), which the backward pass needs; they
# are empty unless save_rows. The seed of dropout is a tensor, so that a compiled graph draws it anew in every call.
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor? dropout_seed, float dropout_p, "
    "bool is_causal, float? scale, bool enable_gqa, bool save_rows) -> (Tensor, Tensor, Tensor)")
_library.define(
    "attention_backward(Tensor grad_output, Tensor? grad_weights, Tensor query, Tensor key, Tensor value, "
    "Tensor? attn_mask, Tensor? dropout_seed, Tensor output, Tensor row_max, Tensor row_sum, float dropout_p, "
    "bool is_causal, float? scale, bool enable_gqa, bool mask_needs_grad) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define(
    "attention_weights(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor? dropout_seed, "
    "float dropout_p, bool is_causal, float? scale, bool enable_gqa, bool save_rows) "
    "-> (Tensor, Tensor, Tensor, Tensor)")
# 1 / (1 - p) where dropout keeps a weight, 0 where it drops it; shape is (..., n_heads, T_q, T_k).
_library.define("kept_weights(Tensor dropout_seed, SymInt[] shape, float dropout_p) -> Tensor")
_ops = torch.ops.headwise
_transforms = torch._C._functorch.peek_interpreter_stack
_is_batched = torch._C._functorch.is_legacy_batchedtensor
_modes, _tracing = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state
_PLAIN = {torch.Tensor, torch.nn.Parameter, type(None)}


def _output_shape(query, key, value):
    leading = query.shape[:-3]
    if leading != key.shape[:-3] or leading != value.shape[:-3]:
        leading = torch.broadcast_shapes(leading, key.shape[:-3], value.shape[:-3])
    heads = query.shape[-3:-2]
    if query.dim() == 2 or key.dim() != query.dim() or (heads and heads[0] == 1):
        heads = torch.broadcast_shapes(heads, key.shape[-3:-2], value.shape[-3:-2])
    return (*leading, *heads, query.shape[-2], value.shape[-1])


def _new_output(query, key, value):
    """Uninitialised, with its dimensions in memory in the order of query's, as torch's function returns it."""
    shape = _output_shape(query, key, value)
    if shape == query.shape:
        return torch.empty_like(query)
    if len(shape) == query.dim() == 4 and query.stride(1) < query.stride(2):
        B, H, T, D = shape
        return query.new_empty((B, T, H, D)).transpose(1, 2)
    return query.new_empty(shape)


def _sum_dtype(x):
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _new_rows(output, wanted):
    return output.new_empty(output.shape[:-1] if wanted else (0,), dtype=_sum_dtype(output))


def _seed(dropout_seed):
    return 0 if dropout_seed is None else int(dropout_seed.item()) & (2**64 - 1)


def _check(query, key, value):
    """What cannot be left to C++, because shapes are computed before it sees them."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() < 2:
            raise ValueError(f"{name}: found shape {tuple(x.shape)}, expected at least 2 dims: (..., T, d_head)")


def checked_output(query, key, value):
    _check(query, key, value)
    try:
        return _new_output(query, key, value)
    except RuntimeError as error:
        raise ValueError(f"query, key, value: found shapes {tuple(query.shape)}, {tuple(key.shape)} and "
                         f"{tuple(value.shape)}, expected leading dims that broadcast") from error


def _outputs(query, key, value, save_rows):
    output = checked_output(query, key, value)
    return output, _new_rows(output, save_rows), _new_rows(output, save_rows)


def _attention_cpu(query, key, value, attn_mask, dropout_seed, dropout_p, is_causal, scale, enable_gqa, save_rows):
    output, row_max, row_sum = _outputs(query, key, value, save_rows)
    _core._attend(query, key, value, attn_mask, dropout_p, _seed(dropout_seed), is_causal, scale, enable_gqa, output,
                  row_max if save_rows else None, row_sum if save_rows else None)
    return output, row_max, row_sum


def flash(query, key, value, is_causal, attn_mask, scale):
    """torch's private CPU operator: the output, and m + log(l) for its backward pass."""
    output = _new_output(query, key, value)
    B, n_heads, T_q = output.shape[:3]
    log_sum_exp = output.new_empty((B, T_q, n_heads), dtype=_sum_dtype(output)).transpose(1, 2)
    _core._attend(query, key, value, attn_mask, 0.0, 0, is_causal, scale, True, output, log_sum_exp=log_sum_exp)
    return output, log_sum_exp


def _attention_fake(query, key, value, attn_mask, dropout_seed, dropout_p, is_causal, scale, enable_gqa, save_rows):
    return _outputs(query, key, value, save_rows)


def _weights_outputs(query, key, value, save_rows):
    output, row_max, row_sum = _outputs(query, key, value, save_rows)
    return output, query.new_empty((*output.shape[:-1], key.shape[-2])), row_max, row_sum


def _attention_weights_cpu(query, key, value, attn_mask, dropout_seed, dropout_p, is_causal, scale, enable_gqa,
                           save_rows):
    output, weights, row_max, row_sum = _weights_outputs(query, key, value, save_rows)
    _core._attend(query, key, value, attn_mask, dropout_p, _seed(dropout_seed), is_causal, scale, enable_gqa, output,
                  row_max if save_rows else None, row_sum if save_rows else None, weights=weights)
    return output, weights, row_max, row_sum


def _attention_weights_fake(query, key, value, attn_mask, dropout_seed, dropout_p, is_causal, scale, enable_gqa,
                            save_rows):
    return _weights_outputs(query, key, value, save_rows)


def _kept(key, dropout_seed, dropout_p, output):
    if dropout_p == 0:
        return None
    return _ops.kept_weights(dropout_seed, (*output.shape[:-1], key.shape[-2]), dropout_p)


def _kept_weights_cpu(dropout_seed, shape, dropout_p):
    if dropout_p == 1:
        return torch.zeros(shape)
    q, k = torch.zeros(*shape[:-1], 1), torch.zeros(*shape[:-2], shape[-1], 1)  # equal scores: no weight is 0
    weights = torch.empty(shape)
    _core._attend(q, k, k, None, dropout_p, _seed(dropout_seed), False, None, False, torch.empty_like(q),
                  weights=weights)
    return (weights != 0).to(torch.float32) / (1 - dropout_p)


def _kept_weights_fake(dropout_seed, shape, dropout_p):
    return torch.empty(shape, device=dropout_seed.device)


def _kept_weights_vmap(info, in_dims, dropout_seed, shape, dropout_p):
    _same_seed(in_dims[0])
    return _ops.kept_weights(dropout_seed, shape, dropout_p), None


def _attention_backward_cpu(grad_output, grad_weights, query, key, value, attn_mask, dropout_seed, output, row_max,
                            row_sum, dropout_p, is_causal, scale, enable_gqa, mask_needs_grad):
    grads = (torch.empty_like(query), torch.empty_like(key), torch.empty_like(value),
             torch.empty_like(attn_mask) if mask_needs_grad else query.new_empty(0))
    _core._attend_backward(grad_output, query, key, value, attn_mask, dropout_p, _seed(dropout_seed), is_causal, scale,
                           enable_gqa, output, row_max, row_sum, *grads[:3], grads[3] if mask_needs_grad else None,
                           grad_weights)
    return grads


def flash_backward(grad_output, query, key, value, output, log_sum_exp, is_causal, attn_mask, scale):
    """torch's private CPU operator, which knows m + log(l) alone, and lays its results out as (B, T, n_heads, d)."""
    grads = [x.new_empty((x.shape[0], x.shape[2], x.shape[1], x.shape[3])).transpose(1, 2) for x in (query, key, value)]
    sees_a_key = (log_sum_exp > -math.inf).to(log_sum_exp.dtype)
    _core._attend_backward(grad_output, query, key, value, attn_mask, 0.0, 0, is_causal, scale, True, output,
                           log_sum_exp, sees_a_key, *grads, None)
    return tuple(grads)


def _attention_backward_fake(grad_output, grad_weights, query, key, value, attn_mask, dropout_seed, output, row_max,
                             row_sum, dropout_p, is_causal, scale, enable_gqa, mask_needs_grad):
    return (torch.empty_like(query), torch.empty_like(key), torch.empty_like(value),
            torch.empty_like(attn_mask) if mask_needs_grad else query.new_empty(0))


# Gradients -----------------------------------------------------------------------------------------------------------

def _save_call(ctx, inputs, output):
    query, key, value, attn_mask, dropout_seed, *ctx.options, save_rows = inputs
    ctx.save_for_backward(query, key, value, attn_mask, dropout_seed, *output)
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, grad_output, *_):
    return _gradients(ctx, grad_output, None)


def _gradients(ctx, grad_output, grad_weights):
    query, key, value, attn_mask, dropout_seed, output, row_max, row_sum = ctx.saved_tensors
    mask_needs_grad = attn_mask is not None and ctx.needs_input_grad[3]
    *grads, d_mask = differentiable("attention_backward")(
        grad_output, grad_weights, query, key, value, attn_mask, dropout_seed, output, row_max, row_sum, *ctx.options,
        mask_needs_grad)
    return *grads, d_mask if mask_needs_grad else None, *(None,) * 6


def _save_backward_call(ctx, inputs, output):
    grad_output, grad_weights, query, key, value, attn_mask, dropout_seed, output_, _, _, *ctx.options, _ = inputs
    ctx.save_for_backward(grad_output, grad_weights, query, key, value, attn_mask, dropout_seed, output_)


def _backward_of_backward(ctx, *grads_of_grads):
    *inputs, dropout_seed, output = ctx.saved_tensors  # grad_output, grad_weights, query, key, value, attn_mask
    dropout_p, is_causal, scale, enable_gqa = ctx.options
    kept = _kept(inputs[3], dropout_seed, dropout_p, output)
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() if x is not None and x.is_floating_point() else x for x in inputs]
        grads = _math.gradients(*inputs, kept, is_causal, scale, enable_gqa)
        pairs = [(g, gg) for g, gg in zip(grads, grads_of_grads) if g is not None and gg is not None and gg.numel()]
        wanted = [i for i, x in enumerate(inputs) if x is not None and x.requires_grad]
        found = torch.autograd.grad([g for g, _ in pairs], [inputs[i] for i in wanted], [gg for _, gg in pairs],
                                    allow_unused=True)
    grads = dict(zip(wanted, found))
    return *(grads.get(i) for i in range(6)), *(None,) * 9


def _save_weights_call(ctx, inputs, output):
    query, key, value, attn_mask, dropout_seed, *ctx.options, save_rows = inputs
    ctx.save_for_backward(query, key, value, attn_mask, dropout_seed, output[0], *output[2:])
    ctx.mark_non_differentiable(*output[2:])


def _weights_backward(ctx, grad_output, grad_weights, *_):
    if grad_output is None:
        grad_output = torch.zeros_like(ctx.saved_tensors[5])
    return _gradients(ctx, grad_output, grad_weights)


# vmap ----------------------------------------------------------------------------------------------------------------

def _batch_in_front(info, in_dims, tensors, rank):
    """Every tensor with the mapped dim first, then its own dims aligned at the right to a common rank."""
    aligned = []
    for x, dim in zip(tensors, in_dims):
        if x is None:
            aligned.append(None)
            continue
        x = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
        aligned.append(x.reshape(x.shape[0], *(1,) * (rank - (x.dim() - 1)), *x.shape[1:]))
    return aligned


def _rank(in_dims, tensors):
    return max(x.dim() - (dim is not None) for x, dim in zip(tensors, in_dims) if x is not None)


def _same_seed(in_dims):
    if in_dims is not None:
        raise ValueError("dropout under vmap: found randomness='different', expected 'same'")


def _attention_vmap(info, in_dims, query, key, value, attn_mask, dropout_seed, *options):
    _same_seed(in_dims[4])
    tensors = (query, key, value, attn_mask)
    query, key, value, attn_mask = _batch_in_front(info, in_dims, tensors, _rank(in_dims, tensors))
    output = differentiable("attention")(query, key, value, attn_mask, dropout_seed, *options)
    batched = 0 if options[-1] else None
    return output, (0, batched, batched)


def _attention_weights_vmap(info, in_dims, query, key, value, attn_mask, dropout_seed, *options):
    _same_seed(in_dims[4])
    tensors = (query, key, value, attn_mask)
    query, key, value, attn_mask = _batch_in_front(info, in_dims, tensors, _rank(in_dims, tensors))
    output = differentiable("attention_weights")(query, key, value, attn_mask, dropout_seed, *options)
    batched = 0 if options[-1] else None
    return output, (0, 0, batched, batched)


def _attention_backward_vmap(info, in_dims, grad_output, grad_weights, query, key, value, attn_mask, dropout_seed,
                             output, row_max, row_sum, *options):
    _same_seed(in_dims[6])
    tensors = (grad_output, grad_weights, query, key, value, attn_mask, output)
    dims = (*in_dims[:6], in_dims[7])
    shapes = [x.shape if dim is None else x.movedim(dim, 0).shape[1:] for x, dim in zip(tensors[2:5], dims[2:5])]
    rank = _rank(dims, tensors)
    # Each mapped call has gradients of its own, so nothing may be shared but the mask.
    full = [x if x is None else x.expand(info.batch_size, *x.shape[1:]) for x in
            _batch_in_front(info, dims, tensors, rank)]
    rows = [x.expand(info.batch_size, *x.shape[1:]) for x in
            _batch_in_front(info, in_dims[8:10], (row_max, row_sum), rank - 1)]
    mask_needs_grad = options[-1]
    grads = differentiable("attention_backward")(*full[:6], dropout_seed, full[6], *rows, *options)
    own = [g.reshape(info.batch_size, *shape) for g, shape in zip(grads, shapes)]
    if not mask_needs_grad:
        return (*own, grads[3]), (0, 0, 0, None)
    mask_shape = attn_mask.shape if in_dims[5] is None else attn_mask.movedim(in_dims[5], 0).shape[1:]
    return (*own, grads[3].reshape(info.batch_size, *mask_shape)), (0, 0, 0, 0)


for _name, _cpu, _fake, _vmap in (
        ("attention", _attention_cpu, _attention_fake, _attention_vmap),
        ("attention_backward", _attention_backward_cpu, _attention_backward_fake, _attention_backward_vmap),
        ("attention_weights", _attention_weights_cpu, _attention_weights_fake, _attention_weights_vmap),
        ("kept_weights", _kept_weights_cpu, _kept_weights_fake, _kept_weights_vmap)):
    _library.impl(_name, _cpu, "CPU")
    torch.library.register_fake(f"headwise::{_name}", _fake, lib=_library)
    torch.library.register_vmap(f"headwise::{_name}", _vmap, lib=_library)
torch.library.register_autograd("headwise::attention", _backward, setup_context=_save_call, lib=_library)
torch.library.register_autograd("headwise::attention_backward", _backward_of_backward,
                                setup_context=_save_backward_call, lib=_library)
torch.library.register_autograd("headwise::attention_weights", _weights_backward, setup_context=_save_weights_call,
                                lib=_library)


# torch.func (grad, jacrev, ...) wants an autograd.Function, and cannot see into what register_autograd makes.
def _function(name, save, backward, vmap):
    op = getattr(_ops, name)
    return type(name, (torch.autograd.Function,), {
        "forward": staticmethod(lambda *args: op(*args)), "setup_context": staticmethod(save),
        "backward": staticmethod(backward), "vmap": staticmethod(vmap)})


_functions = {
    "attention": _function("attention", _save_call, _backward, _attention_vmap),
    "attention_backward": _function("attention_backward", _save_backward_call, _backward_of_backward,
                                    _attention_backward_vmap),
    "attention_weights": _function("attention_weights", _save_weights_call, _weights_backward, _attention_weights_vmap),
}


class Attend(torch.autograd.Function):
    """The same for plain tensors: torch's dispatcher takes longer than a small call, forward and backward."""

    @staticmethod
    def forward(ctx, query, key, value, attn_mask, dropout_seed, dropout_p, is_causal, scale, enable_gqa, with_weights):
        arguments = (query, key, value, attn_mask, dropout_seed, dropout_p, is_causal, scale, enable_gqa, True)
        ctx.options = arguments[5:9]
        if with_weights:
            output, weights, row_max, row_sum = _attention_weights_cpu(*arguments)
        else:
            output, row_max, row_sum = _attention_cpu(*arguments)
        ctx.save_for_backward(query, key, value, attn_mask, dropout_seed, output, row_max, row_sum)
        ctx.set_materialize_grads(False)
        return (output, weights) if with_weights else output

    @staticmethod
    def backward(ctx, grad_output, grad_weights=None):
        query, key, value, attn_mask, dropout_seed, output, row_max, row_sum = ctx.saved_tensors
        if grad_output is None:
            grad_output = torch.zeros_like(output)
        batched = any(x is not None and _is_batched(x) for x in (grad_output, grad_weights))  # is_grads_batched
        if torch.is_grad_enabled() or batched or not is_plain(grad_output, grad_weights, query):
            return _gradients(ctx, grad_output, grad_weights)
        mask_needs_grad = ctx.needs_input_grad[3]
        grads = _attention_backward_cpu(grad_output, grad_weights, query, key, value, attn_mask, dropout_seed, output,
                                        row_max, row_sum, *ctx.options, mask_needs_grad)
        return *grads[:3], grads[3] if mask_needs_grad else None, *(None,) * 6


def is_transformed():
    """Inside of torch.func.grad, vmap and the like."""
    return _transforms() is not None


def is_plain(query, key, value, *masks):
    """Whether nobody would see the operator: then it can be computed without torch's dispatcher, which takes longer
    than a small call."""
    if torch.compiler.is_compiling() or _modes() or is_transformed() or _tracing() is not None:
        return False
    if not (type(query) in _PLAIN and type(key) in _PLAIN and type(value) in _PLAIN and query.is_cpu):
        return False
    return not masks or all(type(mask) in _PLAIN for mask in masks)


def differentiable(name):
    if torch.compiler.is_compiling() or not is_transformed():
        return getattr(_ops, name)
    return _functions[name].apply
