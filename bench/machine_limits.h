// What this machine can do at most, measured: what the benchmarks and `headwise bench` compare
// with.
#pragma once

namespace headwise::bench {

// Best of several short rounds on n threads at once; 0 where the CPU has no such instruction or
// where there is no probe for it (only x86-64 has some).
double fma_flops(int n_threads);       // f32 fused multiply-adds, floating-point operations/s
double bf16_dot_flops(int n_threads);  // AVX-512 dot products of bf16 pairs
double amx_bf16_flops(int n_threads);  // AMX tile products of bf16
double read_bytes_per_second(int n_threads);  // from memory, past all caches; on any CPU

}  // namespace headwise::bench
