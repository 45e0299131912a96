// Few keys for many queries: the bits of the flash block, which takes over where outputs are not
// side by side, and the definition.
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/flash_forward.h"
#include "kernels/head_problem.h"
#include "support/isas.h"

namespace headwise::test {
namespace {

using Kind = kernels::MaskMatrix::Kind;
constexpr std::size_t kBlock = 200;  // queries of a call
constexpr DType kTypes[] = {DType::f32, DType::f64};

HeadResult in_blocks(const HeadProblem& p) { return run(p, kBlock, 2); }

void check(const HeadProblem& p) {
  const HeadResult found = run(p, kBlock);
  expect_close(p, found);
  expect_same_bits(found, in_blocks(p));
}

// The output of a call that asks for no row max and sum.
HeadResult without_rows(const HeadProblem& p, std::size_t step = 1) {
  HeadResult r{Array(p.dtype, p.sizes.T_q, p.sizes.d_v, 5, step), Array(p.dtype, 1, 1),
               Array(p.dtype, 1, 1)};
  kernels::FlashForwardArgs a = args_of(p, r);
  a.row_max = a.row_sum = nullptr;
  kernels::flash_forward(a);
  return r;
}

// 1 where a key is shown to a query: three of four, or all if `share` is 1.
Array shown(std::size_t rows, std::size_t cols, double share = 0.75) {
  Array noise(DType::f32, rows, cols);
  noise.fill(5);
  Array mask(DType::boolean, rows, cols, 2);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < cols; ++c) mask.set(r, c, noise.at(r, c) / 3.4 + 0.5 < share);
  return mask;
}

TEST(FewKeys, EveryNumberOfKeys) {
  for_each_isa([] {
    for (DType dtype : kTypes)
      for (std::size_t T_k = 1; T_k <= 17; ++T_k) check(HeadProblem(dtype, {70, T_k, 68, 68}));
  });
}

TEST(FewKeys, OddSizes) {
  for_each_isa([] {
    for (DType dtype : kTypes)
      for (std::size_t T_q : {1, 3, 17, 64, 65, 197})
        for (std::size_t T_k : {1, 3, 16})
          for (std::size_t d : {0, 1, 3, 8, 40, 65, 130}) {
            SCOPED_TRACE(testing::Message() << "T_q " << T_q << " T_k " << T_k << " d " << d);
            check(HeadProblem(dtype, {T_q, T_k, d, 140 - d}));
            check(HeadProblem(dtype, {T_q, T_k, 131, d}));
          }
  });
}

// Diagonal, boolean mask, bias, padding, last keys that escape them, dropout: in every combination.
TEST(FewKeys, EveryCombinationOfOptions) {
  for_each_isa([] {
    for (DType dtype : kTypes)
      for (std::size_t T_k : {1, 7, 16})
        for (unsigned options = 0; options < 64; ++options) {
          SCOPED_TRACE(testing::Message() << "T_k " << T_k << " options " << options);
          HeadProblem p(dtype, {83, T_k, 70, 61});
          const Array keep = shown(83, T_k), padding = shown(1, T_k, 0.6);
          Array bias(dtype, 83, T_k, 1);
          bias.fill(9);
          for (std::size_t t = 0; t < 83; t += 5) bias.set(t, T_k / 2, -kInfinity);
          if (options & 1) p.terms.diagonal = 5;
          if (options & 2) p.terms.masks[0] = keep.mask(Kind::keep);
          if (options & 4) p.terms.masks[1] = bias.mask(Kind::bias);
          if (options & 8) p.terms.masks[options & 2 ? 1 : 0] = padding.mask(Kind::keep);
          if (options & 16) p.terms.n_maskable = T_k - 1;
          if (options & 32) p.dropout = {0.3, 1, 2};
          check(p);
        }
  });
}

TEST(FewKeys, HiddenNaNIsAbsentAndVisibleNaNIsNot) {
  for_each_isa([] {
    for (DType dtype : kTypes)
      for (std::size_t T_k : {1, 7, 16})
        for (double poison : {kNaN, kInfinity, -kInfinity})
          for (int where = 0; where < 4; ++where) {
            SCOPED_TRACE(testing::Message() << "T_k " << T_k << " " << poison << " " << where);
            HeadProblem p(dtype, {70, T_k, 66, 64});
            if (where == 0) p.q.set(20, 3, poison);
            if (where == 1) p.k.set(T_k - 1, 3, poison);
            if (where == 2) p.v.set(T_k - 1, 3, poison);
            if (where == 3) p.terms.scale = poison;
            check(p);
            p.terms.diagonal = -10;  // the first queries see nothing
            check(p);
          }
  });
}

TEST(FewKeys, OneKeyWhoseScoreNobodyWants) {
  for_each_isa([] {
    for (DType dtype : kTypes)
      for (std::size_t d : {0, 1, 8, 40, 130})
        for (int where = 0; where < 8; ++where) {
          SCOPED_TRACE(testing::Message() << "d " << d << " where " << where);
          HeadProblem p(dtype, {131, 1, d, d});
          const double largest = dtype == DType::f64 ? std::numeric_limits<double>::max()
                                                     : std::numeric_limits<float>::max();
          if (d != 0) {
            const double odd[] = {0, kNaN, kInfinity, largest, -0.0, -kInfinity, kNaN, largest};
            if (where < 4) p.q.set(70, d - 1, odd[where]);
            if (where == 4) p.v.set(0, d - 1, odd[where]);
            if (where == 5) p.v.set(0, 0, odd[where]);
            if (where == 6) p.k.set(0, d / 2, odd[where]);
            if (where == 7)
              for (std::size_t i = 0; i < d; ++i) p.k.set(0, i, odd[where]);
          }
          expect_same_bits(without_rows(p), without_rows(p, 2));
          if (where == 0) {
            for (double scale : {0.0, -1.0, 1e30, kNaN, kInfinity}) {
              p.terms.scale = scale;
              expect_same_bits(without_rows(p), without_rows(p, 2));
            }
            p.terms.scale = 1;
            p.terms.diagonal = -100;
            expect_same_bits(without_rows(p), without_rows(p, 2));
            const Array keep = shown(131, 1);
            p.terms.masks[0] = keep.mask(Kind::keep);
            expect_same_bits(without_rows(p), without_rows(p, 2));
            for (double x : {1.0, -kInfinity, kInfinity, kNaN, largest}) {
              Array bias(dtype, 131, 1);
              bias.fill(7);
              bias.set(69, 0, x);
              p.terms.masks[1] = bias.mask(Kind::bias);
              p.terms.diagonal = kernels::kNoDiagonal;
              expect_same_bits(without_rows(p), without_rows(p, 2));
            }
          }
        }
  });
}

TEST(FewKeys, SameBitsHoweverQueriesAreSplit) {
  for_each_isa([] {
    for (DType dtype : kTypes) {
      HeadProblem p(dtype, {150, 15, 70, 60});
      p.terms.diagonal = 3;
      p.dropout = {0.2, 1, 2};
      const HeadResult whole = run(p, 150);
      for (std::size_t block : {1, 7, 16, 64, 100}) expect_same_bits(run(p, block), whole);
    }
  });
}

TEST(FewKeys, SameBitsOnEveryIsaWithFusedMultiplyAdd) {
  for (DType dtype : kTypes)
    for (std::size_t T_k : {1, 7, 16}) {
      const HeadProblem p(dtype, {150, T_k, 70, 60});
      std::map<std::string, HeadResult> results;
      for_each_isa([&] {
        if (has_fma(isa())) results.emplace(isa(), run(p, kBlock));
      });
      for (const auto& [name, result] : results) {
        SCOPED_TRACE(name);
        expect_same_bits(result, results.begin()->second);
      }
    }
}

}  // namespace
}  // namespace headwise::test
