// attention_weights against the definition, after flash_forward, on every instruction set.
#include "kernels/attention_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/head_problem.h"
#include "support/isas.h"

namespace headwise::test {
namespace {

using Kind = kernels::MaskMatrix::Kind;
using Sizes = HeadProblem::Sizes;
constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

Array weights_of(const std::vector<HeadProblem>& heads, std::size_t block = 64,
                 std::size_t step = 1) {
  const HeadProblem& first = heads.front();
  std::vector<HeadResult> stats;
  std::vector<kernels::WeightsHead> views;
  stats.reserve(heads.size());
  views.reserve(heads.size());
  for (const HeadProblem& p : heads) stats.push_back(run(p));
  for (std::size_t h = 0; h < heads.size(); ++h)
    views.push_back({heads[h].q.view(), heads[h].k.view(), stats[h].m.view().data,
                     stats[h].l.view().data, heads[h].terms, heads[h].dropout});
  Array w(first.dtype, first.sizes.T_q, first.sizes.T_k, 5, step);
  kernels::AttentionWeightsArgs a;
  a.dtype = first.dtype;
  a.heads = views.data();
  a.n_heads = views.size();
  a.w = w.view();
  a.T_q = first.sizes.T_q;
  a.T_k = first.sizes.T_k;
  a.d_head = first.sizes.d_head;
  for (a.t0 = 0; a.t0 < a.T_q; a.t0 += block) {
    a.n_q = std::min(block, a.T_q - a.t0);
    kernels::attention_weights(a);
  }
  return w;
}

void check(const std::vector<HeadProblem>& heads) {
  const HeadProblem& first = heads.front();
  const Array w = weights_of(heads);
  std::vector<double> expected(first.sizes.T_q * first.sizes.T_k, 0.0);
  for (const HeadProblem& p : heads) {
    HeadResult unused;
    const ReferenceResult r = reference_attention(reference_of(args_of(p, unused)));
    for (std::size_t x = 0; x < expected.size(); ++x)
      expected[x] += r.p[x] / static_cast<double>(heads.size());
  }
  for (std::size_t t = 0; t < w.rows(); ++t)
    for (std::size_t j = 0; j < w.cols(); ++j) {
      const double e = expected[t * w.cols() + j], found = w.at(t, j);
      if (std::isnan(e))
        EXPECT_TRUE(std::isnan(found)) << t << ", " << j;
      else
        EXPECT_NEAR(found, e,
                    e * (2 * tolerance(first) + epsilon(first.dtype) / 2) +
                        0x1p-24 * (first.dtype == DType::f16))
            << t << ", " << j;
    }
}

std::vector<HeadProblem> some_heads(const Arithmetic& dtype, Sizes s, std::size_t n) {
  std::vector<HeadProblem> heads;
  for (std::size_t h = 0; h < n; ++h) heads.emplace_back(dtype, s, 3, 1, h + 1);
  return heads;
}

TEST(AttentionWeights, OddSizesAndHeads) {
  for_each_isa([] {
    for (const Arithmetic& dtype : all_types())
      for (const Sizes& s : {Sizes{1, 1, 1, 1}, Sizes{17, 65, 5, 2}, Sizes{66, 130, 16, 1},
                             Sizes{3, 600, 33, 1}, Sizes{2, 3, 0, 1}, Sizes{2, 0, 3, 1}})
        for (std::size_t n : {1, 2, 3}) check(some_heads(dtype, s, n));
  });
}

TEST(AttentionWeights, MasksDiagonalAndDropout) {
  for_each_isa([] {
    for (const Arithmetic& dtype : all_types()) {
      auto heads = some_heads(dtype, {70, 150, 8, 1}, 3);
      Array bias(dtype, 70, 150);
      bias.fill(3);
      for (std::size_t j = 0; j < 150; ++j) bias.set(9, j, -kInfinity);
      for (std::size_t t = 0; t < 70; t += 3) bias.set(t, 7, -kInfinity);
      heads[1].terms.masks[0] = bias.mask(Kind::bias);
      heads[2].terms.diagonal = 10;
      check(heads);
      for (std::size_t h = 0; h < 3; ++h) heads[h].dropout = {0.3, 17, h};
      check(heads);
      heads[0].dropout.p = 1;
      check({heads[0]});
    }
  });
}

TEST(AttentionWeights, RowsWithoutKeysAreZeroAndNaNRowsNaN) {
  for_each_isa([] {
    HeadProblem p(DType::f32, {70, 300, 8, 2});
    p.terms.diagonal = -3;
    p.q.set(40, 2, kNaN);
    for (std::size_t block : {1, 16, 64, 70}) {
      const Array w = weights_of({p}, block);
      for (std::size_t j = 0; j < 300; ++j) {
        EXPECT_EQ(w.at(0, j), 0.0);
        EXPECT_TRUE(std::isnan(w.at(40, j)));
        EXPECT_FALSE(std::isnan(w.at(41, j)));
      }
    }
  });
}

TEST(AttentionWeights, SameBitsHoweverCutAndOnFusedIsas) {
  for (DType dtype : kTypes) {
    auto heads = some_heads(dtype, {150, 200, 20, 1}, 2);
    heads[0].dropout = {0.2, 1, 2};
    heads[1].terms.diagonal = 5;
    std::map<std::string, Array> fused;
    for_each_isa([&] {
      const Array whole = weights_of(heads, 150);
      EXPECT_EQ(weights_of(heads, 7).bytes(), whole.bytes());
      EXPECT_EQ(weights_of(heads, 64).bytes(), whole.bytes());
      if (has_fma(isa())) fused.emplace(isa(), whole);
    });
    for (const auto& [name, w] : fused) EXPECT_EQ(w.bytes(), fused.begin()->second.bytes()) << name;
  }
}

// With q = 1, m = 0 and l = 1 the weights are exp of the keys, bit for bit.
template <typename T>
std::vector<T> exponentials(const std::vector<T>& x) {
  const T one = 1, zero = 0;
  std::vector<T> w(x.size());
  kernels::WeightsHead head;
  head.q = {&one, 1, 1};
  head.k = {x.data(), 1, 1};
  head.row_max = &zero;
  head.row_sum = &one;
  kernels::AttentionWeightsArgs a;
  a.dtype = dtype_of_v<T>;
  a.heads = &head;
  a.w = {w.data(), static_cast<std::ptrdiff_t>(x.size()), 1};
  a.T_q = a.n_q = a.d_head = 1;
  a.T_k = x.size();
  kernels::attention_weights(a);
  return w;
}

template <typename T>
double largest_error_in_ulps(const std::vector<T>& x) {
  const std::vector<T> y = exponentials(x);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double exact = std::exp(static_cast<long double>(x[i]));
    if (exact < std::numeric_limits<T>::min()) {
      EXPECT_EQ(y[i], T{0}) << x[i];
      continue;
    }
    const T below = std::exp2(std::floor(std::log2(static_cast<T>(exact))));
    const long double ulp = below * std::numeric_limits<T>::epsilon();
    worst = std::max(worst, static_cast<double>(std::abs(y[i] - exact) / ulp));
  }
  return worst;
}

TEST(AttentionWeights, ExponentialIsWithinItsStatedError) {
  std::vector<float> x;
  for (std::uint32_t bits = 0x80000000u; bits < 0xC2D00000u; bits += 4999)
    x.push_back(std::bit_cast<float>(bits));
  for (float near = -0.0f; near > -110; near -= 0.00390625f) x.push_back(near);
  std::vector<double> y(x.begin(), x.end());
  for (double& value : y) value = value * 6.8 - value * 0x1p-30;
  for_each_isa([&] {
    EXPECT_LE(largest_error_in_ulps(x), 1.1);
    EXPECT_LE(largest_error_in_ulps(y), 1.5);
  });
}

TEST(AttentionWeights, ExponentialAtTheEnds) {
  for_each_isa([] {
    const float inf = std::numeric_limits<float>::infinity();
    const auto y =
        exponentials<float>({0.0f, -0.0f, -inf, -87.33654f, -87.4f, -1e38f, NAN, -NAN,
                             std::bit_cast<float>(0x7fc0ffffu), std::bit_cast<float>(0xffffffffu)});
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 1.0f);
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_GE(y[3], std::numeric_limits<float>::min());
    EXPECT_EQ(y[4], 0.0f);
    EXPECT_EQ(y[5], 0.0f);
    for (std::size_t i = 6; i < y.size(); ++i) EXPECT_TRUE(std::isnan(y[i])) << i;
    const auto z = exponentials<double>(
        {0.0, -kInfinity, -708.3, -708.5, -1e300, kNaN, std::bit_cast<double>(~std::uint64_t{0})});
    EXPECT_EQ(z[0], 1.0);
    EXPECT_EQ(z[1], 0.0);
    EXPECT_GT(z[2], 0.0);
    EXPECT_EQ(z[3], 0.0);
    EXPECT_EQ(z[4], 0.0);
    EXPECT_TRUE(std::isnan(z[5]) && std::isnan(z[6]));
  });
}

TEST(AttentionWeights, OutputOfAnyStride) {
  for_each_isa([] {
    for (const Arithmetic& dtype : all_types()) {
      const auto heads = some_heads(dtype, {20, 130, 8, 1}, 2);
      const Array spread = weights_of(heads, 64, 3), plain = weights_of(heads);
      for (std::size_t t = 0; t < 20; ++t)
        for (std::size_t j = 0; j < 130; ++j) EXPECT_EQ(spread.at(t, j), plain.at(t, j));
    }
  });
}

}  // namespace
}  // namespace headwise::test
