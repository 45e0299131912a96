// decode_weights against the definition, after flash_decode, on every instruction set.
#include "kernels/decode/decode_weights.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decode/group.h"
#include "support/isas.h"

namespace headwise::test {
namespace {

using Kind = kernels::MaskMatrix::Kind;
constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

// Weights of all heads' mean, made in pieces of `width` keys.
Array weights_of(const Group& group, std::size_t width = 1 << 20, std::size_t step = 1) {
  const HeadProblem& first = group.heads[0];
  std::vector<HeadResult> stats = decode(group);
  std::vector<kernels::WeightsHead> views;
  for (std::size_t h = 0; h < group.heads.size(); ++h)
    views.push_back({group.heads[h].q.view(), first.k.view(), stats[h].m.view().data,
                     stats[h].l.view().data, group.heads[h].terms, group.heads[h].dropout});
  Array w(first.dtype, first.sizes.T_q, first.sizes.T_k, 5, step);
  kernels::AttentionWeightsArgs a;
  a.dtype = first.dtype;
  a.heads = views.data();
  a.n_heads = views.size();
  a.w = w.view();
  a.T_q = first.sizes.T_q;
  a.T_k = first.sizes.T_k;
  a.d_head = first.sizes.d_head;
  constexpr std::size_t kRows = 3;
  for (a.t0 = 0; a.t0 < a.T_q; a.t0 += kRows) {
    a.n_q = std::min(kRows, a.T_q - a.t0);
    for (std::size_t j0 = 0; j0 < a.T_k; j0 += width)
      kernels::decode_weights(a, j0, std::min(width, a.T_k - j0));
  }
  return w;
}

void check(const Group& group, std::size_t step = 1) {
  const HeadProblem& first = group.heads[0];
  const Array w = weights_of(group, 64, step);
  std::vector<double> expected(first.sizes.T_q * first.sizes.T_k, 0.0);
  for (const HeadProblem& p : group.heads) {
    HeadResult unused;
    const ReferenceResult r = reference_attention(reference_of(args_of(p, unused)));
    for (std::size_t x = 0; x < expected.size(); ++x)
      expected[x] += r.p[x] / static_cast<double>(group.heads.size());
  }
  const double relative = 2 * tolerance(first) + epsilon(first.dtype) / 2;
  for (std::size_t t = 0; t < w.rows(); ++t)
    for (std::size_t j = 0; j < w.cols(); ++j) {
      const double e = expected[t * w.cols() + j], found = w.at(t, j);
      if (std::isnan(e))
        EXPECT_TRUE(std::isnan(found)) << t << ", " << j;
      else
        EXPECT_NEAR(found, e, e * relative + 0x1p-24 * (first.dtype == DType::f16))
            << t << ", " << j;
    }
}

TEST(DecodeWeights, OddSizesAndHeads) {
  for_each_isa([] {
    for (DType dtype : kTypes)
      for (std::size_t n_heads : {1, 3})
        for (std::size_t T_k : {0, 1, 63, 130, 600}) {
          check(Group(dtype, n_heads, {4, T_k, 9, 3}));
          check(Group(dtype, n_heads, {1, T_k, 16, 1}, 2, 2), 3);
        }
  });
}

TEST(DecodeWeights, MasksDiagonalsAndDropout) {
  for_each_isa([] {
    for (DType dtype : kTypes) {
      Array keep(DType::boolean, 5, 200), bias(dtype, 1, 200);
      bias.fill(3);
      for (std::size_t t = 0; t < 5; ++t)
        for (std::size_t j = 0; j < 200; ++j) keep.set(t, j, t != 2 && (t * 7 + j) % 3 != 0);
      Group group(dtype, 2, {5, 201, 8, 4});
      group.each([&](HeadProblem& p) {
        p.terms.n_maskable = 200;
        p.terms.masks[1] = bias.mask(Kind::bias);
      });
      check(group);
      group.heads[1].terms.masks[0] = keep.mask(Kind::keep);  // row 2 sees the last key alone
      check(group);
      group.each([](HeadProblem& p) {
        p.terms.n_maskable = 201;
        p.terms.masks[1] = {};
        p.terms.masks[0] = {};
        p.terms.diagonal = -2;  // the first rows see nothing
        p.dropout = {0.3, 5, 6};
      });
      check(group);
    }
  });
}

// In hidden keys too, however the row is cut.
TEST(DecodeWeights, RowsOfNaNAreNaNEverywhere) {
  for_each_isa([] {
    Group group(DType::f32, 1, {3, 100, 4, 4});
    group.heads[0].q.set(1, 0, kNaN);
    group.heads[0].terms.diagonal = 50;
    const Array w = weights_of(group, 64);
    for (std::size_t t = 0; t < 3; ++t)
      for (std::size_t j = 0; j < 100; ++j) ASSERT_EQ(std::isnan(w.at(t, j)), t == 1);
  });
}

// The largest score gets its full weight, whatever its size: both passes form the same scores.
TEST(DecodeWeights, HugeScores) {
  for_each_isa([] {
    Group group(DType::f32, 1, {1, 200, 33, 1});
    HeadProblem& p = group.heads[0];
    for (std::size_t i = 0; i < 33; ++i) p.q.set(0, i, 1e18 * (1 + static_cast<double>(i) / 7));
    const Array w = weights_of(group);
    double sum = 0;
    for (std::size_t j = 0; j < 200; ++j) sum += w.at(0, j);
    EXPECT_EQ(sum, 1);
  });
}

TEST(DecodeWeights, SameBitsHoweverKeysAreCut) {
  for_each_isa([] {
    const Group group(DType::f32, 3, {4, 1100, 20, 4});
    const Array whole = weights_of(group);
    for (std::size_t width : {64, 512}) EXPECT_EQ(weights_of(group, width).bytes(), whole.bytes());
  });
}

}  // namespace
}  // namespace headwise::test
