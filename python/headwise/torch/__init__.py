"""headwise for PyTorch: attention on CPU tensors, with gradients, for functions, modules and whole processes."""
from ._attention import attention_with_weights, scaled_dot_product_attention
from ._module import MultiheadAttention, convert
from ._process import disable, enable, enabled

__all__ = ["MultiheadAttention", "attention_with_weights", "convert", "disable", "enable", "enabled",
           "scaled_dot_product_attention"]
