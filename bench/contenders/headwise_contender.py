"""headwise itself, through bench_api.cc; HEADWISE_BUILD names the build to load."""
import ctypes
import functools
import os
from pathlib import Path

import numpy as np

import inputs
from cases import Attention, AttentionTraining, ModuleTraining
from contenders import Call

CODES = {"f32": 0, "f64": 1, "bf16": 2, "f16": 3}
SIZE, POINTER, INTEGER, REAL = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_double


class AttentionCase(ctypes.Structure):
    _fields_ = ([(name, POINTER) for name in ("q", "k", "v", "mask", "o")]
                + [(name, SIZE) for name in ("B", "n_heads", "n_kv_heads", "T_q", "T_k", "d")]
                + [("mask_shape", SIZE * 4)]
                + [(name, INTEGER) for name in ("dtype", "causal", "mask_is_bias")])


class Gradients(ctypes.Structure):
    _fields_ = [(name, POINTER) for name in ("d_o", "row_max", "row_sum", "dq", "dk", "dv")]


SIGNATURES = {
    "bench_error": (ctypes.c_char_p, []),
    "bench_isa": (ctypes.c_char_p, []),
    "bench_set_threads": (None, [INTEGER]),
    "bench_fma_flops": (REAL, [INTEGER]),
    "bench_bf16_dot_flops": (REAL, [INTEGER]),
    "bench_amx_bf16_flops": (REAL, [INTEGER]),
    "bench_read_bytes_per_second": (REAL, [INTEGER]),
    "bench_attention": (REAL, [ctypes.POINTER(AttentionCase), INTEGER]),
    "bench_attention_training": (REAL, [ctypes.POINTER(AttentionCase), ctypes.POINTER(Gradients), INTEGER]),
    "bench_module_new": (POINTER, [SIZE, SIZE, INTEGER]),
    "bench_module_free": (None, [POINTER]),
    "bench_module_set": (REAL, [POINTER, ctypes.c_char_p, POINTER, SIZE, SIZE]),
    "bench_module_training": (REAL, [POINTER, POINTER, POINTER, SIZE, SIZE, POINTER, POINTER, INTEGER]),
    "bench_module_forward": (REAL, [POINTER, POINTER, SIZE, SIZE, POINTER, POINTER, INTEGER]),
}


def _load():
    library = ctypes.CDLL(str(Path(os.environ["HEADWISE_BUILD"]) / "bench" / "libheadwise_bench.so"))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


LIBRARY = _load()


def version():
    return LIBRARY.bench_isa().decode()


def set_threads(n):
    LIBRARY.bench_set_threads(n)


def limits(n_threads):
    """What the machine can do at most on n threads; 0 where it has no such instruction."""
    return {"fma_flops": LIBRARY.bench_fma_flops(n_threads), "bf16_dot_flops": LIBRARY.bench_bf16_dot_flops(n_threads),
            "amx_bf16_flops": LIBRARY.bench_amx_bf16_flops(n_threads),
            "read_bytes": read_bytes(n_threads)}


def read_bytes(n_threads):
    return LIBRARY.bench_read_bytes_per_second(n_threads)


def _checked(seconds):
    if seconds < 0:
        raise RuntimeError(LIBRARY.bench_error().decode())
    return seconds


class _Call(Call):
    """Repeats in C, so that Python's own time is not counted."""

    def __init__(self, repeat, result, keep=None):
        super().__init__(lambda: self.seconds(1), result, keep)
        self.repeat = repeat

    def seconds(self, n):
        return _checked(self.repeat(n))


def _attention_case(case, data):
    """As the library wants it, and the output."""
    o = inputs.aligned((case.B, case.n_heads, case.T_q, case.d_head), data["q"].dtype)
    c = AttentionCase(data["q"].ctypes.data, data["k"].ctypes.data, data["v"].ctypes.data, None, o.ctypes.data,
                      case.B, case.n_heads, case.kv_heads, case.T_q, case.T_k, case.d_head)
    c.dtype, c.causal, c.mask_is_bias = CODES[case.dtype], case.mode == "causal", case.mode == "bias"
    if data["mask"] is not None:
        c.mask, c.mask_shape = data["mask"].ctypes.data, (SIZE * 4)(*case.mask_shape)
    return c, o


def _attention(case):
    data = inputs.attention_inputs(case)
    c, o = _attention_case(case, data)
    return _Call(lambda n: LIBRARY.bench_attention(ctypes.byref(c), n), lambda: {"output": o}, data)


def _training(case):
    data = inputs.attention_inputs(case)
    c, o = _attention_case(case, data)
    rows = [inputs.aligned(o.shape[:3], np.float64 if case.dtype == "f64" else np.float32) for _ in range(2)]
    found = {"d" + name: inputs.aligned(data[name].shape, data[name].dtype) for name in "qkv"}
    g = Gradients(data["d_o"].ctypes.data, *(a.ctypes.data for a in (*rows, *found.values())))
    return _Call(lambda n: LIBRARY.bench_attention_training(ctypes.byref(c), ctypes.byref(g), n),
                 lambda: {"output": o, **found}, (data, rows))


class _Module:
    def __init__(self, case, parameters):
        self.pointer = LIBRARY.bench_module_new(case.embed_dim, case.n_heads, CODES[case.dtype])
        if not self.pointer:
            raise RuntimeError(LIBRARY.bench_error().decode())
        for name, value in parameters.items():
            rows, columns = value.shape if value.ndim == 2 else (0, value.shape[0])
            _checked(LIBRARY.bench_module_set(self.pointer, name.encode(), value.ctypes.data, rows, columns))

    def __del__(self):
        if self.pointer:
            LIBRARY.bench_module_free(self.pointer)


def _module(case):
    data = inputs.module_inputs(case)
    x = data.pop("x")
    module = _Module(case, data)
    result = {"output": np.empty_like(x)}
    if case.weights:
        result["weights"] = np.empty((case.B, case.T, case.T), x.dtype)
    weights = result["weights"].ctypes.data if case.weights else None
    return _Call(lambda n: LIBRARY.bench_module_forward(module.pointer, x.ctypes.data, case.B, case.T,
                                                        result["output"].ctypes.data, weights, n), lambda: result)


def _module_training(case):
    data = inputs.module_inputs(case)
    x, d_output = data.pop("x"), data.pop("d_output")
    module = _Module(case, data)
    E = case.embed_dim
    found = {"d_x": np.empty_like(x),
             "d_in_proj_weight": np.empty((3 * E, E), np.float64 if case.dtype == "f64" else np.float32)}
    pointers = (array.ctypes.data for array in (x, d_output))
    results = [array.ctypes.data for array in found.values()]
    call = functools.partial(LIBRARY.bench_module_training, module.pointer, *pointers, case.B, case.T, *results)
    return _Call(call, lambda: found, (module, x, d_output))


def variants(case):
    if isinstance(case, AttentionTraining):
        return [("", lambda: _training(case))]
    if isinstance(case, ModuleTraining):
        return [("", lambda: _module_training(case))]
    return [("", lambda: _attention(case) if isinstance(case, Attention) else _module(case))]
