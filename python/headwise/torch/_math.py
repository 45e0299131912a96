"""The gradients of attention in torch's own operations, which torch can differentiate once more.

Used where the compiled code has no answer: gradients of gradients. It holds matrices of (..., n_heads, T_q, T_k), which
nothing else in headwise does.
"""
import math

import torch


def _widened(query, key, value, enable_gqa):
    """In the dtype of the sums, with a key and a value for every head of query."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if enable_gqa:
        key, value = (x if x.shape[-3] in (1, query.shape[-3]) else
                      x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    return query, key, value


def _scale(query, scale):
    return 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale


def _weights(query, key, attn_mask, is_causal, scale):
    """The softmax of widened arguments; rows without a key are 0."""
    scores = query @ key.transpose(-2, -1) * _scale(query, scale)
    T_q, T_k = scores.shape[-2:]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = (scores + attn_mask).masked_fill(attn_mask == -math.inf, -math.inf)
    if is_causal:
        scores = scores.masked_fill(scores.new_ones(T_q, T_k, dtype=torch.bool).tril().logical_not(), -math.inf)
    if T_k == 0:
        return scores
    largest = scores.detach().amax(-1, keepdim=True)
    exp = torch.exp(scores - largest.masked_fill(largest == -math.inf, 0))
    total = exp.sum(-1, keepdim=True)
    return exp / total.masked_fill(total == 0, 1)


def _unseen_as_zero(attn_mask, key, value):
    """Keys that a mask hides from every query may hold anything: they are left out, not multiplied by 0."""
    if attn_mask is None or attn_mask.shape[-1] != key.shape[-2]:
        return key, value
    seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask != -math.inf
    unseen = ~seen.any(-2).unsqueeze(-1)
    return key.masked_fill(unseen, 0), value.masked_fill(unseen, 0)


def _summed(grad, like):
    """Undoes broadcasting and the repetition of heads."""
    if grad.dim() >= 3 and like.dim() >= 3 and like.shape[-3] not in (1, grad.shape[-3]):
        grad = grad.unflatten(-3, (like.shape[-3], -1)).sum(-3)
    return grad.sum_to_size(like.shape).to(like.dtype)


def gradients(grad_output, grad_weights, query, key, value, attn_mask, kept, is_causal, scale, enable_gqa):
    """Of query, key, value and a floating attn_mask (else None); grad_weights may be None."""
    q, k, v = _widened(query, key, value, enable_gqa)
    k, v = _unseen_as_zero(attn_mask, k, v)
    weights = _weights(q, k, attn_mask, is_causal, scale)
    grad_output = grad_output.to(q.dtype)
    dropped = weights if kept is None else weights * kept
    d_v = dropped.transpose(-2, -1) @ grad_output
    d_p = grad_output @ v.transpose(-2, -1)
    if grad_weights is not None:
        d_p = d_p + grad_weights
    if kept is not None:
        d_p = d_p * kept
    d_s = weights * (d_p - (d_p * weights).sum(-1, keepdim=True))
    d_q = d_s @ k * _scale(q, scale)
    d_k = d_s.transpose(-2, -1) @ q * _scale(q, scale)
    floating = attn_mask is not None and attn_mask.dtype != torch.bool
    d_mask = d_s.sum_to_size(attn_mask.shape).to(attn_mask.dtype) if floating else None
    return _summed(d_q, query), _summed(d_k, key), _summed(d_v, value), d_mask
