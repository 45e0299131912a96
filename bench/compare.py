#!/usr/bin/env python3
"""Times headwise beside PyTorch, both in this process, after checking that the answers agree.

    bench/run [--only TEXT] [--threads N] [--rounds N] [--json FILE]

Each row alternates PyTorch and headwise and takes the best round of each. The share is of what the machine
can do in the same minute: fused multiply-adds, or for one query reads from memory. Run it while nothing else
computes.
"""
import argparse
import ctypes
import json
import os
import time
from pathlib import Path

import torch  # first: headwise then shares its OpenMP threads

DTYPES = {"f32": (torch.float32, 0), "bf16": (torch.bfloat16, 2), "f16": (torch.float16, 3)}
MAX_ERROR = {"f32": 1e-5, "bf16": 2e-2, "f16": 3e-3}  # of the largest output, between two roundings
BLOCK_SECONDS = 0.05  # a block of calls lasts about this long

# name, dtype, B, heads, KV heads, T_q, T_k, d_head, causal
ATTENTION = [
    ("attention 1,8,1024,1024,64", "f32", 1, 8, 8, 1024, 1024, 64, False),
    ("attention 1,8,1024,1024,64 causal", "f32", 1, 8, 8, 1024, 1024, 64, True),
    ("attention 1,8,4096,4096,64 causal", "f32", 1, 8, 8, 4096, 4096, 64, True),
    ("attention 1,8,1024,1024,128 causal", "f32", 1, 8, 8, 1024, 1024, 128, True),
    ("attention 4,12,128,128,64", "f32", 4, 12, 12, 128, 128, 64, False),
    ("attention 4,12,128,128,32", "f32", 4, 12, 12, 128, 128, 32, False),
    ("attention 2,8,16,16,64", "f32", 2, 8, 8, 16, 16, 64, False),
    ("decode 1,32,1,8192,128", "f32", 1, 32, 32, 1, 8192, 128, False),
]

# name, dtype, B, T, embed_dim, heads, averaged weights
MODULE = [
    ("module 1,4,8,2", "f32", 1, 4, 8, 2, False),
    ("module 2,16,512,8", "f32", 2, 16, 512, 8, False),
    ("module 1,1,768,12", "f32", 1, 1, 768, 12, False),
    ("module 8,128,384,12", "f32", 8, 128, 384, 12, False),
    ("module 1,1024,768,12", "f32", 1, 1024, 768, 12, False),
    ("module 1,4096,512,8", "f32", 1, 4096, 512, 8, False),
    ("module 1,4096,512,8 weights", "f32", 1, 4096, 512, 8, True),
]


class AttentionCase(ctypes.Structure):
    _fields_ = ([(name, ctypes.c_void_p) for name in ("q", "k", "v", "o")]
                + [(name, ctypes.c_size_t) for name in ("B", "n_heads", "n_kv_heads", "T_q", "T_k", "d")]
                + [(name, ctypes.c_int) for name in ("dtype", "causal")])


def load_library(build_dir):
    library = ctypes.CDLL(str(build_dir / "bench" / "libheadwise_bench.so"))
    size, pointer, integer, double = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_double
    signatures = {
        "bench_error": (ctypes.c_char_p, []),
        "bench_isa": (ctypes.c_char_p, []),
        "bench_set_threads": (None, [integer]),
        "bench_fma_flops": (double, [integer]),
        "bench_read_bytes_per_second": (double, [integer]),
        "bench_attention": (double, [ctypes.POINTER(AttentionCase), integer]),
        "bench_module_new": (pointer, [size, size, integer]),
        "bench_module_free": (None, [pointer]),
        "bench_module_set": (double, [pointer, ctypes.c_char_p, pointer, size, size]),
        "bench_module_forward": (double, [pointer, pointer, size, size, pointer, pointer, integer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def time_torch(call, n):
    start = time.perf_counter()
    for _ in range(n):
        call()
    return time.perf_counter() - start


def alternate(contenders, rounds):
    """Best seconds a call of each contender; a contender is a function of n that returns the seconds of n calls."""
    counts = []
    for contender in contenders:
        contender(1)
        once = max(contender(3) / 3, 1e-9)
        counts.append(max(1, round(BLOCK_SECONDS / once)))
    best = [float("inf")] * len(contenders)
    for _ in range(rounds):
        for i, contender in enumerate(contenders):
            best[i] = min(best[i], contender(counts[i]) / counts[i])
    return best


class Bench:
    def __init__(self, library, threads, rounds):
        self.library = library
        self.rounds = rounds
        torch.set_num_threads(threads)
        library.bench_set_threads(threads)
        self.flops = library.bench_fma_flops(threads)
        self.bandwidth = library.bench_read_bytes_per_second(threads)

    def checked(self, seconds):
        if seconds < 0:
            raise RuntimeError(self.library.bench_error().decode())
        return seconds

    def row(self, name, dtype, contenders, found, expected, work):
        error = max((f.float() - e.float()).abs().max().item() / e.float().abs().max().item()
                    for f, e in zip(found, expected))
        if not error <= MAX_ERROR[dtype]:
            raise RuntimeError(f"{name}: differs from PyTorch by {error:.1e} of the largest output")
        torch_s, headwise_s = alternate(contenders, self.rounds)
        unit, amount, limit = work
        return {"name": name, "dtype": dtype, "torch_us": torch_s * 1e6, "headwise_us": headwise_s * 1e6,
                "ratio": torch_s / headwise_s, unit: amount / headwise_s / 1e9,
                "share": amount / headwise_s / limit if limit else None, "error": error}

    def attention(self, name, dtype, B, n_heads, n_kv_heads, T_q, T_k, d, causal):
        torch_dtype, code = DTYPES[dtype]
        q = torch.randn(B, n_heads, T_q, d).to(torch_dtype)
        k, v = (torch.randn(B, n_kv_heads, T_k, d).to(torch_dtype) for _ in "kv")
        o = torch.empty_like(q)
        case = AttentionCase(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), B, n_heads, n_kv_heads,
                             T_q, T_k, d, code, int(causal))

        def peer():
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=n_heads != n_kv_heads)

        def ours(n):
            return self.checked(self.library.bench_attention(ctypes.byref(case), n))

        ours(1)
        flops = 4 * B * n_heads * T_q * T_k * d / (2 if causal else 1)
        work = ("gflops", flops, self.flops)
        if T_q == 1:
            work = ("gbytes", k.nbytes + v.nbytes, self.bandwidth)
        return self.row(name, dtype, [lambda n: time_torch(peer, n), ours], [o], [peer()], work)

    def module(self, name, dtype, B, T, embed_dim, num_heads, weights):
        torch_dtype, code = DTYPES[dtype]
        peer_module = torch.nn.MultiheadAttention(embed_dim, num_heads, batch_first=True, dtype=torch_dtype).eval()
        module = self.library.bench_module_new(embed_dim, num_heads, code)
        if not module:
            raise RuntimeError(self.library.bench_error().decode())
        for key, value in peer_module.state_dict().items():
            rows, columns = value.shape if value.dim() == 2 else (0, value.shape[0])
            self.checked(self.library.bench_module_set(module, key.encode(), value.data_ptr(), rows, columns))
        x = torch.randn(B, T, embed_dim).to(torch_dtype)
        out = torch.empty_like(x)
        found_weights = torch.empty(B, T, T, dtype=torch_dtype) if weights else None

        def peer():
            return peer_module(x, x, x, need_weights=weights)

        def ours(n):
            return self.checked(self.library.bench_module_forward(
                module, x.data_ptr(), B, T, out.data_ptr(), found_weights.data_ptr() if weights else None, n))

        ours(1)
        flops = B * T * (8 * embed_dim * embed_dim + 4 * T * embed_dim)
        found = [out, found_weights] if weights else [out]
        row = self.row(name, dtype, [lambda n: time_torch(peer, n), ours], found, peer()[:len(found)],
                       ("gflops", flops, self.flops))
        self.library.bench_module_free(module)
        return row


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write one JSON object a line to this file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    library = load_library(Path(os.environ["HEADWISE_BUILD"]))
    bench = Bench(library, arguments.threads, arguments.rounds)
    machine = {"cpu": cpu_name(), "isa": library.bench_isa().decode(), "threads": arguments.threads,
               "torch": torch.__version__, "fma_gflops": bench.flops / 1e9, "read_gbytes": bench.bandwidth / 1e9}
    print(f"{machine['cpu']}, {machine['isa']}, {arguments.threads} threads, PyTorch {torch.__version__}; "
          f"at most {machine['fma_gflops']:.0f} GFLOP/s (f32), {machine['read_gbytes']:.1f} GB/s", flush=True)
    lines = [machine]
    with torch.inference_mode():
        for kind, rows in ((bench.attention, ATTENTION), (bench.module, MODULE)):
            for row in rows:
                if arguments.only not in row[0]:
                    continue
                line = kind(*row)
                lines.append(line)
                unit = "gflops" if "gflops" in line else "gbytes"
                share = f"{line['share']:4.0%}" if line["share"] is not None else "   -"
                print(f"{line['name']:36} {line['dtype']:5} PyTorch {line['torch_us']:10.1f} µs   "
                      f"headwise {line['headwise_us']:10.1f} µs   ratio {line['ratio']:6.2f}   "
                      f"{line[unit]:7.1f} {unit:6} {share}   error {line['error']:.0e}", flush=True)
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
