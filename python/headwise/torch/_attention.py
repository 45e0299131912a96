"""scaled_dot_product_attention on torch's tensors."""
import torch
from torch.autograd import forward_ad

from .. import _core
from ._operators import Attend, checked_output, differentiable, is_plain, is_transformed


def needs_grad(*tensors):
    if not torch.is_grad_enabled():
        return False
    if not torch.compiler.is_compiling() and is_transformed():  # a tensor does not show what is wanted outside
        return True
    if forward_ad._current_level >= 0:  # tangents do not show either, and torch says that Attend has none
        return True
    return any(x is not None and x.requires_grad for x in tensors)


def draw_seed(dropout_p):
    """A seed from torch's generator; None without dropout."""
    return torch.randint(2**62, (), dtype=torch.int64) if dropout_p > 0 else None


def _check_probability(dropout_p):
    if isinstance(dropout_p, bool):
        raise TypeError(f"dropout_p: found {dropout_p}, expected a number in [0, 1]")
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout_p: found {dropout_p}, expected a number in [0, 1]")


def _attend(query, key, value, attn_mask, is_causal, scale, enable_gqa):
    if query.is_contiguous():
        return _core.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa)
    output = checked_output(query, key, value)
    _core._attend(query, key, value, attn_mask, 0.0, 0, is_causal, scale, enable_gqa, output)
    return output


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                 enable_gqa=False):
    """torch.nn.functional.scaled_dot_product_attention by headwise, on CPU tensors, with gradients.

    query       (..., n_heads, T_q, d_head)
    key         (..., n_kv_heads, T_k, d_head)
    value       (..., n_kv_heads, T_k, d_v)
    attn_mask   broadcasts to (..., n_heads, T_q, T_k): bool, where True takes part, or a float that is added
    dropout_p   probability of dropping a weight; the seed comes from torch's generator
    is_causal   query t sees the keys up to t; beside a mask, both have to allow a key

    Returns (..., n_heads, T_q, d_v), in query's dtype (float32, float64, bfloat16 or float16) and order of dimensions.
    Nothing is copied, and neither pass holds a T_q x T_k matrix; only gradients of gradients do. Raises ValueError or
    TypeError for arguments that do not fit.
    """
    if not (query.is_cpu or query.is_meta):
        raise ValueError(f"query: found a tensor on {query.device}, expected one in the CPU's memory")
    if dropout_p != 0:
        _check_probability(dropout_p)
    save_rows = needs_grad(query, key, value, attn_mask)
    if (save_rows or dropout_p == 0) and is_plain(query, key, value, attn_mask):
        if save_rows:
            return Attend.apply(query, key, value, attn_mask, draw_seed(dropout_p), dropout_p, is_causal, scale,
                                enable_gqa, False)
        return _attend(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return differentiable("attention")(query, key, value, attn_mask, draw_seed(dropout_p), dropout_p, is_causal, scale,
                                        enable_gqa, save_rows)[0]


def attention_with_weights(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                           enable_gqa=False):
    """The same, and the weights after dropout, (..., n_heads, T_q, T_k). The output is the same to the bit."""
    _check_probability(dropout_p)
    seed, save_rows = draw_seed(dropout_p), needs_grad(query, key, value, attn_mask)
    if save_rows and is_plain(query, key, value, attn_mask):
        return Attend.apply(query, key, value, attn_mask, seed, dropout_p, is_causal, scale, enable_gqa, True)
    return differentiable("attention_weights")(query, key, value, attn_mask, seed, dropout_p, is_causal, scale,
                                                enable_gqa, save_rows)[:2]
