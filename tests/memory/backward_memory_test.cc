// What a backward call takes beyond its inputs and outputs, as the kernel counts it: the peak of
// the resident set, with threads' stacks and everything else.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention_backward.h"
#include "headwise/runtime.h"

namespace headwise {
namespace {

// With a sanitizer, shadow memory counts too, and the long call takes minutes.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

// VmRSS or VmHWM in MiB.
double status_mib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(field + ":", 0) == 0) return std::stod(line.substr(field.size() + 1)) / 1024.0;
  return std::numeric_limits<double>::quiet_NaN();
}

// Brings the recorded peak down to what is resident now, or finds it there: in a new process.
bool reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
  return status_mib("VmHWM") - status_mib("VmRSS") < 1.0;
}

template <typename F>
double peak_mib_beyond(F&& call) {
  const double before = status_mib("VmRSS");
  call();
  return status_mib("VmHWM") - before;
}

// Touched, so that it is resident before the call.
std::vector<float> numbers(std::size_t n, std::uint32_t seed) {
  std::vector<float> values(n);
  for (float& x : values) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
  }
  return values;
}

TEST(BackwardMemory, LongSequenceTakesLessThan3QAnd32MiB) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer takes memory of its own";
  constexpr std::size_t T = 32768, n_heads = 8, d = 64, n = n_heads * T * d;
  const Shape shape{1, n_heads, T, d}, rows{1, n_heads, T};
  const std::vector<float> q = numbers(n, 1), k = numbers(n, 2), v = numbers(n, 3),
                           d_o = numbers(n, 4);
  // What a call takes does not depend on what is in these, and the forward call takes minutes.
  const std::vector<float> o(n, 0.5f), m(n_heads * T, 1.0f), l(n_heads * T, 100.0f);
  std::vector<float> dq(n, 0.0f), dk(n, 0.0f), dv(n, 0.0f);
  // Keys of one band: the whole matrix would take minutes, too.
  std::vector<char> keep(T, 0);
  std::fill_n(keep.begin() + T / 2, 700, 1);
  AttentionOptions options;
  options.mask = Mask::keep({keep.data(), DType::boolean, Shape{1, T}});
  if (!reset_peak()) GTEST_SKIP() << "the peak cannot be reset here";
  const double beyond = peak_mib_beyond([&] {
    scaled_dot_product_attention_backward(
        {q.data(), shape}, {k.data(), shape}, {v.data(), shape}, options,
        {{d_o.data(), shape}, {o.data(), shape}, {m.data(), rows}, {l.data(), rows}},
        {{dq.data(), shape}, {dk.data(), shape}, {dv.data(), shape}, {}, {}});
  });
  RecordProperty("peak_mib_beyond", std::to_string(beyond));
  EXPECT_LT(beyond, 3 * 64.0 + 32.0);
  EXPECT_EQ(dk[0], 0.0f);
  EXPECT_NE(dk[T / 2 * d], 0.0f);
}

}  // namespace
}  // namespace headwise
