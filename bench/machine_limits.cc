// Chains of one instruction in registers, as many as hide its latency, and a sum over more memory
// than caches hold. Plain vectors of the compiler and, where those have no spelling that all
// compilers share, the instruction itself.
#include "machine_limits.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headwise::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The sum over threads of what `measure` gives on each, best of several.
double on_threads(int n_threads, const std::function<double()>& measure) {
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    std::vector<double> rates(static_cast<std::size_t>(n_threads));
    std::vector<std::thread> threads;
    threads.reserve(rates.size());
    for (double& rate : rates) threads.emplace_back([&rate, &measure] { rate = measure(); });
    for (std::thread& t : threads) t.join();
    double sum = 0;
    for (double rate : rates) sum += rate;
    best = std::max(best, sum);
  }
  return best;
}

#if defined(__x86_64__)
volatile float sink;
constexpr long kSteps = 4'000'000;
constexpr int kChains = 12;  // hides the latency of 4 to 6 cycles on 2 ports, within 16 registers

typedef float Vector16 __attribute__((vector_size(64)));
typedef float Vector8 __attribute__((vector_size(32)));

__attribute__((target("avx512f"))) double fma_512() {
  Vector16 a[kChains], b, c;
  for (int i = 0; i < 16; ++i) b[i] = 0.999f, c[i] = 1e-9f;
  for (Vector16& x : a) x = b;
  const auto start = Clock::now();
  for (long i = 0; i < kSteps; ++i)
    for (Vector16& x : a) x = x * b + c;
  const double time = seconds_since(start);
  for (const Vector16& x : a) sink = x[0];
  return kSteps * 2.0 * 16 * kChains / time;
}

__attribute__((target("avx2,fma"))) double fma_256() {
  Vector8 a[kChains], b, c;
  for (int i = 0; i < 8; ++i) b[i] = 0.999f, c[i] = 1e-9f;
  for (Vector8& x : a) x = b;
  const auto start = Clock::now();
  for (long i = 0; i < kSteps; ++i)
    for (Vector8& x : a) x = x * b + c;
  const double time = seconds_since(start);
  for (const Vector8& x : a) sink = x[0];
  return kSteps * 2.0 * 8 * kChains / time;
}

// Each lane adds the products of two pairs. The numbers are whatever the registers hold: the
// instruction takes as long for any.
double bf16_dot_512() {
  const auto start = Clock::now();
  for (long i = 0; i < kSteps; ++i)
    asm volatile(  // kChains of them
        "vdpbf16ps %%zmm15, %%zmm15, %%zmm0\n\tvdpbf16ps %%zmm15, %%zmm15, %%zmm1\n\t"
        "vdpbf16ps %%zmm15, %%zmm15, %%zmm2\n\tvdpbf16ps %%zmm15, %%zmm15, %%zmm3\n\t"
        "vdpbf16ps %%zmm15, %%zmm15, %%zmm4\n\tvdpbf16ps %%zmm15, %%zmm15, %%zmm5\n\t"
        "vdpbf16ps %%zmm15, %%zmm15, %%zmm6\n\tvdpbf16ps %%zmm15, %%zmm15, %%zmm7\n\t"
        "vdpbf16ps %%zmm15, %%zmm15, %%zmm8\n\tvdpbf16ps %%zmm15, %%zmm15, %%zmm9\n\t"
        "vdpbf16ps %%zmm15, %%zmm15, %%zmm10\n\tvdpbf16ps %%zmm15, %%zmm15, %%zmm11\n\t"
        :
        :
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
          "xmm11");
  return kSteps * 4.0 * 16 * kChains / seconds_since(start);
}

struct __attribute__((packed)) TileConfig {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// A step is four products of 16 x 32 and 32 x 16 numbers, into four tiles.
double amx_bf16() {
  const TileConfig config;
  asm volatile("ldtilecfg %0" : : "m"(config));
  asm volatile(
      "tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3\n\t"
      "tilezero %tmm4\n\ttilezero %tmm5\n\ttilezero %tmm6\n\ttilezero %tmm7");
  constexpr long kTileSteps = kSteps / 8;
  const auto start = Clock::now();
  for (long i = 0; i < kTileSteps; ++i)
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
        "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
  const double time = seconds_since(start);
  asm volatile("tilerelease");
  return kTileSteps * 4.0 * 16 * 16 * 32 * 2 / time;
}

// The CPU has the tiles and Linux lends this process their registers.
bool may_use_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return (d & kBf16) != 0 && (d & kTile) != 0 &&
         ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

}  // namespace

#if defined(__x86_64__)
double fma_flops(int n_threads) {
  if (__builtin_cpu_supports("avx512f")) return on_threads(n_threads, fma_512);
  if (__builtin_cpu_supports("fma")) return on_threads(n_threads, fma_256);
  return 0;
}
double bf16_dot_flops(int n_threads) {
  return __builtin_cpu_supports("avx512bf16") ? on_threads(n_threads, bf16_dot_512) : 0;
}
double amx_bf16_flops(int n_threads) { return may_use_amx() ? on_threads(n_threads, amx_bf16) : 0; }
#else
double fma_flops(int) { return 0; }
double bf16_dot_flops(int) { return 0; }
double amx_bf16_flops(int) { return 0; }
#endif

double read_bytes_per_second(int n_threads) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;  // past any cache
  return on_threads(n_threads, [] {
    const std::vector<long> data(kBytes / sizeof(long), 1);
    const auto start = Clock::now();
    long sums[8] = {};
    for (std::size_t i = 0; i < data.size(); i += 8)
      for (std::size_t j = 0; j < 8; ++j) sums[j] += data[i + j];
    volatile long kept =
        sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
    static_cast<void>(kept);
    return static_cast<double>(kBytes) / seconds_since(start);
  });
}

}  // namespace headwise::bench
