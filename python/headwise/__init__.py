"""Multi-head attention for CPUs: what torch's scaled_dot_product_attention and MultiheadAttention compute, on NumPy
arrays and on anything with DLPack."""
try:
    from . import _core
except ImportError as error:
    if "libgomp" not in str(error):
        raise
    from . import _libgomp
    _libgomp.load()
    from . import _core

from ._core import (
    AttentionPlan,
    MultiheadAttention,
    __version__,
    available_isas,
    available_kernels,
    explain_attention,
    get_num_threads,
    isa,
    kernel,
    manual_seed,
    randn,
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
    scaled_dot_product_attention_with_state,
    set_isa,
    set_kernel,
    set_num_threads,
)

__all__ = [
    "AttentionPlan",
    "MultiheadAttention",
    "__version__",
    "available_isas",
    "available_kernels",
    "explain_attention",
    "get_num_threads",
    "isa",
    "kernel",
    "manual_seed",
    "randn",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_backward",
    "scaled_dot_product_attention_with_state",
    "set_isa",
    "set_kernel",
    "set_num_threads",
]
