"""headwise for Hugging Face transformers: the attention implementation "headwise".

    headwise.transformers.register()
    model = AutoModel.from_pretrained(name, attn_implementation="headwise")
"""
import math
import sys

import torch

from .torch import attention_with_weights, scaled_dot_product_attention

_NAME = "headwise"


def register():
    """Makes attn_implementation="headwise" known to transformers, with the boolean masks that it needs."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(_NAME, attention)
    AttentionMaskInterface.register(_NAME, sdpa_mask)


def _wants_weights(kwargs):
    """Whether the caller of the model asked for attentions, which not every model passes on."""
    if "output_attentions" in kwargs:
        return bool(kwargs["output_attentions"])
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(capturing, "_active_collector", None)
    wanted = collector.get() if collector is not None and not torch.compiler.is_compiling() else None
    return bool(wanted) and any("attentions" in name for name in wanted)


def _refuse_what_is_missing(kwargs):
    for name, what in (("softcap", "capped scores (Gemma 2)"), ("s_aux", "attention sinks (gpt-oss)")):
        if kwargs.get(name) is not None:
            raise ValueError(f"{name}: headwise has no {what} yet; use attn_implementation=\"eager\"")


def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, position_bias=None,
              **kwargs):
    """What a model of transformers calls.

    query           (B, n_heads, T_q, d_head)
    key, value      (B, n_kv_heads, T_k, d_head), not repeated
    attention_mask  broadcasts to (B, n_heads, T_q, T_k): bool, where True takes part, or a float; None: causal when
                    is_causal, or else the module, says so. Windows are in the mask
    position_bias   is added to the scores

    Returns the output, (B, T_q, n_heads, d_head), and the weights, (B, n_heads, T_q, T_k), or None unless the caller of
    the model asked for attentions. Raises ValueError for softcap and s_aux, which headwise does not compute yet.
    """
    _refuse_what_is_missing(kwargs)
    T_q, T_k = query.shape[2], key.shape[2]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    is_causal = T_q > 1 and attention_mask is None and bool(is_causal)
    if attention_mask is not None and attention_mask.shape[-1] > T_k:
        attention_mask = attention_mask[..., :T_k]
    if position_bias is not None:
        allowed = attention_mask if attention_mask is not None and attention_mask.dtype == torch.bool else None
        if attention_mask is not None and allowed is None:
            position_bias = position_bias + attention_mask
        attention_mask = position_bias if allowed is None else torch.where(allowed, position_bias, -math.inf)
        attention_mask = attention_mask.to(query.dtype)
    call = attention_with_weights if _wants_weights(kwargs) else scaled_dot_product_attention
    result = call(query, key, value, attention_mask, dropout, is_causal, scaling, key.shape[1] != query.shape[1])
    output, weights = result if call is attention_with_weights else (result, None)
    return output.transpose(1, 2).contiguous(), weights


def _is_supported(model):
    config = model.config.get_text_config()
    return (getattr(config, "attn_logit_softcapping", None) is None
            and not any(name.endswith("sinks") for name, _ in model.named_parameters()))


def convert(model):
    """Switches the models of transformers in `model` to "headwise", as far as headwise has what they need."""
    from transformers import PreTrainedModel

    models = [m for m in model.modules() if isinstance(m, PreTrainedModel)]
    if not models:
        return model
    register()
    inside = {id(part) for m in models for part in m.modules() if part is not m}
    for m in models:
        if id(m) not in inside and _is_supported(m):
            m.set_attn_implementation(_NAME)
    return model
