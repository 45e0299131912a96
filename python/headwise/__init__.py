"""Multi-head attention for CPUs: what torch's scaled_dot_product_attention and MultiheadAttention compute, on NumPy
arrays and on anything with DLPack."""
from typing import TYPE_CHECKING

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
    ForwardState,
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

if TYPE_CHECKING:
    from ._heat_map import HeatMap


def __getattr__(name):
    """What takes a while to import, or is seldom wanted, is imported when it is."""
    if name == "HeatMap":
        from ._heat_map import HeatMap
        return HeatMap
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AttentionPlan",
    "ForwardState",
    "HeatMap",
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
