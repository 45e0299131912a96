"""enable(): every attention of the process that torch would compute on the CPU."""
import contextlib
import threading
import warnings

import torch
import torch.compiler.config

from .. import _core
from . import _attention, _module, _operators

# torch keeps compiled graphs on disk; those with our operators are for processes that have them.
_CACHE_TAG = f"headwise-{_core.__version__}"
_lock = threading.Lock()
_registrations = None  # the library whose kernels stand before torch's


def _is_ours(query, key, value, attn_mask):
    return (query.is_cpu and query.dtype in _module.DTYPES and key.dtype == query.dtype == value.dtype
            and query.layout == key.layout == value.layout == torch.strided and query.dim() >= 2
            and (attn_mask is None or attn_mask.dim() >= 2))


def _torchs_own(*args, **kwargs):
    return torch.ops.aten.scaled_dot_product_attention.default.decompose(*args, **kwargs)


def _scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None,
                                  enable_gqa=False):
    # Inside torch.func's transforms torch takes the function apart, and may come to _flash.
    if not _is_ours(query, key, value, attn_mask) or _operators.is_transformed():
        return _torchs_own(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return _attention.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale,
                                                   enable_gqa)


def _flash(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    """What graphs hold that torch.export or torch.compile took apart."""
    return _operators.flash(query, key, value, is_causal, attn_mask, scale)


def _flash_backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None):
    return _operators.flash_backward(grad_out, query, key, value, out, logsumexp, is_causal, attn_mask, scale)


def _native_multi_head_attention(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias,
                                 mask=None, need_weights=True, average_attn_weights=True, mask_type=None):
    """What nn.MultiheadAttention and nn.TransformerEncoderLayer call in inference, on three dims with batch_first."""
    padding = mask if mask_type == 1 else None
    output, weights = _module.fused(query, key, value, num_head, qkv_weight, None, None, None, qkv_bias, None, None,
                                    proj_weight, proj_bias, False, padding, mask if padding is None else None,
                                    need_weights, average_attn_weights, False, True)
    return output, weights if need_weights else None


def enable():
    """Lets headwise compute every attention that this process runs on the CPU, until disable().

    That is torch.nn.functional.scaled_dot_product_attention, also under autograd and torch.compile, and the fast paths
    of nn.MultiheadAttention and nn.TransformerEncoderLayer. Calls that headwise has no answer for (other devices,
    layouts and dtypes) stay torch's. Out of reach are nn.MultiheadAttention outside of its fast path when it is asked
    for weights, nested tensors, and torch.func.vmap: convert() and the functions of headwise.torch serve these. A graph
    that was compiled before keeps what it was compiled with.
    """
    global _registrations
    with _lock:
        if _registrations is not None:
            return
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="[\\s\\S]*previously registered kernel")  # which is what we want
            for key in ("CPU", "AutogradCPU"):
                library.impl("scaled_dot_product_attention", _scaled_dot_product_attention, key)
            library.impl("_scaled_dot_product_flash_attention_for_cpu", _flash, "CPU", allow_override=True)
            library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", _flash_backward, "CPU",
                         allow_override=True)
            library.impl("_native_multi_head_attention", _native_multi_head_attention, "CPU", allow_override=True)
        _registrations = library
        torch.compiler.config.cache_key_tag += _CACHE_TAG


def disable():
    """Gives all attention back to torch."""
    global _registrations
    with _lock:
        if _registrations is not None:
            _registrations._destroy()
            _registrations = None
            torch.compiler.config.cache_key_tag = torch.compiler.config.cache_key_tag.replace(_CACHE_TAG, "")


@contextlib.contextmanager
def enabled():
    """enable() for a with block; inside another one, or after enable(), it changes nothing."""
    before = _registrations is not None
    enable()
    try:
        yield
    finally:
        if not before:
            disable()
