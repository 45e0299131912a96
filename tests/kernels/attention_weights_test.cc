// attention_weights against the definition, after flash_forward, on every instruction set.
#include "kernels/attention_weights.h"

#include <cmath>
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

std::vector<HeadProblem> some_heads(DType dtype, Sizes s, std::size_t n) {
  std::vector<HeadProblem> heads;
  for (std::size_t h = 0; h < n; ++h) heads.emplace_back(dtype, s, 3, 1, h + 1);
  return heads;
}

TEST(AttentionWeights, OddSizesAndHeads) {
  for_each_isa([] {
    for (DType dtype : kTypes)
      for (const Sizes& s : {Sizes{1, 1, 1, 1}, Sizes{17, 65, 5, 2}, Sizes{66, 130, 16, 1},
                             Sizes{3, 600, 33, 1}, Sizes{2, 3, 0, 1}, Sizes{2, 0, 3, 1}})
        for (std::size_t n : {1, 2, 3}) check(some_heads(dtype, s, n));
  });
}

TEST(AttentionWeights, MasksDiagonalAndDropout) {
  for_each_isa([] {
    for (DType dtype : kTypes) {
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

TEST(AttentionWeights, OutputOfAnyStride) {
  for_each_isa([] {
    for (DType dtype : kTypes) {
      const auto heads = some_heads(dtype, {20, 130, 8, 1}, 2);
      const Array spread = weights_of(heads, 64, 3), plain = weights_of(heads);
      for (std::size_t t = 0; t < 20; ++t)
        for (std::size_t j = 0; j < 130; ++j) EXPECT_EQ(spread.at(t, j), plain.at(t, j));
    }
  });
}

}  // namespace
}  // namespace headwise::test
