#include "cli/bench_call.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <unistd.h>

#include "cli/common.h"
#include "headwise/attention.h"
#include "headwise/random.h"
#include "support/reference.h"

namespace headwise::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxRows = 64;
constexpr std::size_t kCheckedTerms = std::size_t{1} << 25;  // about a second of the reference
constexpr double kSampleSeconds = 0.01;
constexpr std::size_t kMinSamples = 3;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double physical_bytes() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<double>(::sysconf(_SC_PAGESIZE));
}

Shape output_shape(const AttentionShape& s) { return {s.q[0], s.q[1], s.q[2], s.v[3]}; }

// Before anything is drawn: a process that fills all memory is killed without a word.
const AttentionShape& checked(const AttentionShape& s) {
  from_command_line([&] {
    return explain_attention({nullptr, s.dtype, s.q}, {nullptr, s.dtype, s.k},
                             {nullptr, s.dtype, s.v}, s.options);
  });
  if (s.k[1] > s.q[1])  // one query head for several is a broadcast, which is not timed here
    throw UsageError("--kv-heads: found " + std::to_string(s.k[1]) + ", expected at most the " +
                     std::to_string(s.q[1]) + " of --shape");
  double bytes = 0;
  for (const Shape& shape : {s.q, s.k, s.v, output_shape(s)}) {
    double elements = 1;
    for (std::size_t size : shape) elements *= static_cast<double>(size);
    if (elements == 0)
      throw UsageError("--shape: found a tensor " + to_string(shape) +
                       " without elements, expected sizes of at least 1");
    bytes += elements * static_cast<double>(size_of(s.dtype));
  }
  if (bytes > physical_bytes())
    throw UsageError("--shape: found tensors of " + format(bytes / 0x1p30, "%.3g") +
                     " GiB, expected less than the " + format(physical_bytes() / 0x1p30, "%.3g") +
                     " GiB of this machine");
  return s;
}

// Flat row r of [B, n_heads, T_q], as a head of one query.
test::ReferenceHead reference_row(const AttentionShape& s, const Tensor& q, const Tensor& k,
                                  const Tensor& v, std::size_t r) {
  test::ReferenceHead head;
  const std::size_t n_heads = s.q[1], n_kv_heads = s.k[1], T_q = s.q[2], t = r % T_q;
  const std::size_t h = r / T_q % n_heads, b = r / T_q / n_heads;
  head.T_q = 1;
  head.T_k = s.k[2];
  head.d_head = s.q[3];
  head.d_v = s.v[3];
  head.scale = 1.0 / std::sqrt(static_cast<double>(head.d_head));
  const std::size_t first_key = (b * n_kv_heads + h / (n_heads / n_kv_heads)) * head.T_k;
  const auto row = [](const Tensor& x, std::size_t first, std::size_t width) {
    return [&x, first, width](std::size_t t_, std::size_t i) {
      return test::element(x.view().data, x.dtype(),
                           static_cast<std::ptrdiff_t>((first + t_) * width + i));
    };
  };
  head.q = row(q, r, head.d_head);
  head.k = row(k, first_key, head.d_head);
  head.v = row(v, first_key, head.d_v);
  if (s.options.causal)
    head.bias = [t, T_q, T_k = head.T_k, align = *s.options.causal](std::size_t, std::size_t j) {
      const bool hidden = align == CausalAlign::top_left ? j > t : j + T_q > t + T_k;
      return hidden ? -test::kInfinity : 0.0;
    };
  return head;
}

}  // namespace

double BenchTimes::quantile(double q) const {
  const double at = q * static_cast<double>(samples.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, samples.size() - 1);
  return samples[low] + (samples[high] - samples[low]) * (at - static_cast<double>(low));
}

double BenchTimes::spread() const { return (quantile(0.75) - quantile(0.25)) / median(); }

BenchCall::BenchCall(const AttentionShape& shape, std::uint64_t seed) : shape_(checked(shape)) {
  Generator generator(seed);
  q_ = randn(shape_.q, generator, shape_.dtype);
  k_ = randn(shape_.k, generator, shape_.dtype);
  v_ = randn(shape_.v, generator, shape_.dtype);
  o_ = Tensor::zeros(shape_.dtype, output_shape(shape_));
}

AttentionPlan BenchCall::plan() const { return explain_attention(q_, k_, v_, shape_.options); }

void BenchCall::run() { scaled_dot_product_attention(q_, k_, v_, shape_.options, o_.view()); }

Tally BenchCall::check() const {
  Tally tally;
  const std::string kernel = plan().kernel;
  const std::size_t n_rows = shape_.q[0] * shape_.q[1] * shape_.q[2];
  const std::size_t T_k = shape_.k[2], d_head = shape_.q[3], d_v = shape_.v[3];
  const std::size_t affordable = kCheckedTerms / (T_k * (d_head + d_v));
  const std::size_t n = std::min(n_rows, std::clamp<std::size_t>(affordable, 2, kMaxRows));
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t r = n == 1 ? 0 : i * (n_rows - 1) / (n - 1);  // the first and the last too
    const auto expected = test::reference_attention(reference_row(shape_, q_, k_, v_, r));
    for (std::size_t c = 0; c < d_v; ++c) {
      const double found =
          test::element(o_.view().data, shape_.dtype, static_cast<std::ptrdiff_t>(r * d_v + c));
      const double magnitude = expected.magnitude[c];
      tally.add(found, expected.o[c],
                attention_bound(kernel, shape_.dtype, T_k, d_head, expected.o[c], magnitude),
                magnitude);
    }
    ++tally.n_cases;
  }
  return tally;
}

BenchTimes BenchCall::time(double seconds) {
  const auto sample = [this](std::size_t n) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < n; ++i) run();
    return seconds_since(start) / static_cast<double>(n);
  };
  BenchTimes times;
  const double once = std::max(std::min(sample(1), sample(1)), 1e-9);
  times.calls_per_sample = static_cast<std::size_t>(std::max(1.0, kSampleSeconds / once));
  sample(times.calls_per_sample);  // not counted: caches and threads get ready
  const auto start = Clock::now();
  while (times.samples.size() < kMinSamples || seconds_since(start) < seconds)
    times.samples.push_back(sample(times.calls_per_sample));
  std::sort(times.samples.begin(), times.samples.end());
  return times;
}

}  // namespace headwise::cli
