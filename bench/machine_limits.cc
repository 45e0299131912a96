// What this machine can do at most: f32 fused multiply-adds and reads from memory, on n threads.
// Plain vectors of the compiler, one function for each width; x86-64 only, 0 elsewhere.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "headwise/export.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kChains = 12;  // hides the latency of 4 cycles on 2 ports, within 16 registers

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
#endif

}  // namespace

extern "C" HEADWISE_API double bench_fma_flops(int n_threads) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return on_threads(n_threads, fma_512);
  if (__builtin_cpu_supports("fma")) return on_threads(n_threads, fma_256);
#endif
  return 0.0;
}

extern "C" HEADWISE_API double bench_read_bytes_per_second(int n_threads) {
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
