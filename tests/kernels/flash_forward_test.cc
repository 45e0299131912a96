// flash_forward against the definition, on every instruction set.
#include "kernels/flash_forward.h"

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

void check(const HeadProblem& p) { expect_close(p, run(p)); }

// A mask that hides about `share` of the keys.
Array hiding(DType dtype, std::size_t rows, std::size_t cols, double share, double hidden,
             double shown, std::uint64_t seed = 5) {
  Array noise(DType::f32, rows, cols);
  noise.fill(seed);
  Array mask(dtype, rows, cols, 2);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < cols; ++c)
      mask.set(r, c, noise.at(r, c) / 3.4 + 0.5 < share ? hidden : shown);
  return mask;
}

TEST(FlashForward, OddSizes) {
  for_each_isa([] {
    for (const Arithmetic& dtype : all_types())
      for (const Sizes& s :
           {Sizes{1, 1, 1, 1}, Sizes{3, 2, 3, 2}, Sizes{17, 63, 7, 5}, Sizes{5, 64, 64, 64},
            Sizes{33, 65, 16, 33}, Sizes{65, 130, 40, 6}, Sizes{2, 129, 129, 70},
            Sizes{64, 3, 0, 4}, Sizes{4, 5, 3, 0}, Sizes{3, 0, 8, 8}}) {
        SCOPED_TRACE(testing::Message() << dtype << " T_q " << s.T_q << " T_k " << s.T_k << " d "
                                        << s.d_head << " d_v " << s.d_v);
        check(HeadProblem(dtype, s));
        check(HeadProblem(dtype, s, 1, 2));
      }
  });
}

TEST(FlashForward, TileAndLeafBoundaries) {
  for_each_isa([] {
    for (const Arithmetic& dtype : each_kernel())
      for (std::size_t T_k : {511, 512, 513, 1023, 1025, 1600, 2049})
        check(HeadProblem(dtype, {3, T_k, 8, 5}));
    check(HeadProblem(DType::bf16, {3, 1025, 512, 3}));
  });
}

TEST(FlashForward, DiagonalsOfAnyOffset) {
  for_each_isa([] {
    for (const Arithmetic& dtype : each_kernel())
      for (std::ptrdiff_t diagonal : {0, 1, -1, 63, -70, 500, -500})
        for (const Sizes& s : {Sizes{70, 70, 4, 3}, Sizes{130, 600, 4, 3}}) {
          SCOPED_TRACE(diagonal);
          HeadProblem p(dtype, s);
          p.terms.diagonal = diagonal;
          check(p);
        }
  });
}

TEST(FlashForward, BooleanMasksOfEveryShape) {
  for_each_isa([] {
    for (const Arithmetic& dtype : each_kernel())
      for (const Sizes& s : {Sizes{70, 70, 4, 3}, Sizes{5, 600, 4, 3}, Sizes{66, 129, 4, 3}})
        for (Kind kind : {Kind::keep, Kind::ignore})
          for (double share : {0.0, 0.3, 0.97, 1.0})
            for (int broadcast = 0; broadcast < 4; ++broadcast) {
              HeadProblem p(dtype, s);
              const Array mask =
                  hiding(DType::boolean, broadcast & 1 ? 1 : s.T_q, broadcast & 2 ? 1 : s.T_k,
                         share, kind == Kind::ignore, kind != Kind::ignore);
              p.terms.masks[0] = mask.mask(kind);
              check(p);
              p.terms.diagonal = 3;
              check(p);
            }
  });
}

TEST(FlashForward, BiasesOfEveryDtypeAndShape) {
  for_each_isa([] {
    for (const Arithmetic& dtype : all_types())
      for (DType bias : kTypes)
        for (int broadcast = 0; broadcast < 4; ++broadcast) {
          const Sizes s{35, 130, 4, 3};
          HeadProblem p(dtype, s);
          const std::size_t rows = broadcast & 1 ? 1 : s.T_q, cols = broadcast & 2 ? 1 : s.T_k;
          Array first(bias, rows, cols, 1, 2),
              second = hiding(bias, s.T_q, s.T_k, 0.2, -kInfinity, 0.5);
          first.fill(9);
          p.terms.masks[0] = first.mask(Kind::bias);
          check(p);
          p.terms.masks[1] = second.mask(Kind::bias);
          check(p);
        }
  });
}

TEST(FlashForward, TwoMasksAndADiagonal) {
  for_each_isa([] {
    for (const Arithmetic& dtype : all_types()) {
      const Sizes s{70, 200, 8, 8};
      HeadProblem p(dtype, s);
      const Array padding = hiding(DType::boolean, 1, s.T_k, 0.5, 1, 0);
      const Array bias = hiding(dtype, s.T_q, s.T_k, 0.4, -kInfinity, 0.25);
      p.terms.masks[0] = padding.mask(Kind::ignore);
      p.terms.masks[1] = bias.mask(Kind::bias);
      p.terms.diagonal = 20;
      check(p);
    }
  });
}

TEST(FlashForward, LastKeysEscapeMasksAndDiagonal) {
  for_each_isa([] {
    for (std::size_t appended : {1, 2, 66}) {
      const Sizes s{70, 650, 8, 8};
      HeadProblem p(DType::f32, s);
      p.terms.n_maskable = s.T_k - appended;
      p.terms.diagonal = 0;
      check(p);
      const Array none = hiding(DType::boolean, s.T_q, s.T_k - appended, 1, 0, 1);
      p.terms.masks[0] = none.mask(Kind::keep);
      check(p);
      const Array bias = hiding(DType::f32, s.T_q, s.T_k - appended, 0.5, -kInfinity, 1);
      p.terms.masks[0] = bias.mask(Kind::bias);
      p.terms.diagonal = kernels::kNoDiagonal;
      check(p);
    }
  });
}

TEST(FlashForward, AnyScale) {
  for_each_isa([] {
    for (const Arithmetic& dtype : all_types())
      for (double scale : {0.0, -0.7, 1e-3, 3.0, 1.0 / 3.0, kNaN, kInfinity, -kInfinity}) {
        HeadProblem p(dtype, {5, 70, 9, 4});
        p.terms.scale = scale;
        SCOPED_TRACE(scale);
        check(p);
      }
  });
}

TEST(FlashForward, DropoutByPosition) {
  for_each_isa([] {
    for (const Arithmetic& dtype : all_types())
      for (double drop : {0.0, 0.25, 0.9, 1.0}) {
        if (!dtype.drops()) continue;
        HeadProblem p(dtype, {37, 135, 8, 8});
        p.dropout = {drop, 0x123456789abcdefu, (std::uint64_t{3} << 32) + 4};
        check(p);
        p.terms.diagonal = 0;
        check(p);
      }
  });
}

TEST(FlashForward, LargeScoresStayExact) {
  for_each_isa([] {
    HeadProblem p(DType::f16, {1, 2, 64, 1});
    for (std::size_t i = 0; i < 64; ++i) {
      p.q.set(0, i, 300);
      p.k.set(0, i, 300);
      p.k.set(1, i, -300);
    }
    p.v.set(0, 0, 1);
    p.v.set(1, 0, 2);
    EXPECT_EQ(run(p).o.at(0, 0), 1.0);
  });
}

// A hidden key and value may hold anything; one that some rows see reaches those alone.
TEST(FlashForward, HiddenKeysAndValuesAreAbsent) {
  for_each_isa([] {
    for (const Arithmetic& dtype : all_types())
      for (std::size_t T_k : {70u, 600u})
        for (double poison : {kNaN, kInfinity, -kInfinity, 1e30}) {
          HeadProblem p(dtype, {70, T_k, 8, 6});
          const std::size_t hidden_key = 3, causal_key = 66;
          Array mask = hiding(DType::boolean, 70, T_k, 0.1, 0, 1);
          for (std::size_t t = 0; t < 70; ++t) mask.set(t, hidden_key, 0);
          p.terms.masks[0] = mask.mask(Kind::keep);
          p.terms.diagonal = 0;
          const HeadResult clean = run(p);
          for (std::size_t i = 0; i < 8; ++i) p.k.set(hidden_key, i, poison);
          for (std::size_t i = 0; i < 6; ++i) p.v.set(hidden_key, i, poison);
          expect_same_bits(run(p), clean);
          // Seen by the last rows alone.
          for (std::size_t i = 0; i < 6; i += 2) p.v.set(causal_key, i, poison);
          const HeadResult seen = run(p);
          expect_close(p, seen);
          for (std::size_t t = 0; t < causal_key; ++t)
            for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(seen.o.at(t, i), clean.o.at(t, i));
        }
  });
}

TEST(FlashForward, VisibleNaNReachesItsRowsOnly) {
  for_each_isa([] {
    for (const Arithmetic& dtype : all_types())
      for (int where = 0; where < 4; ++where) {
        SCOPED_TRACE(where);
        HeadProblem p(dtype, {70, 150, 8, 6});
        p.terms.diagonal = 60;
        Array bias(dtype, 70, 150);
        for (std::size_t t = 0; t < 70; ++t)
          for (std::size_t j = 0; j < 150; ++j) bias.set(t, j, 0);
        if (where == 0) p.q.set(20, 3, kNaN);
        if (where == 1) p.k.set(100, 3, kNaN);
        if (where == 2) p.v.set(100, 3, kNaN);
        if (where == 3) bias.set(33, 5, kNaN);
        if (where == 3) p.terms.masks[0] = bias.mask(Kind::bias);
        check(p);
      }
  });
}

TEST(FlashForward, InfiniteBiasAndScoresStayInTheirRow) {
  for_each_isa([] {
    HeadProblem p(DType::f32, {20, 70, 4, 4});
    Array bias(DType::f32, 20, 70);
    for (std::size_t t = 0; t < 20; ++t)
      for (std::size_t j = 0; j < 70; ++j) bias.set(t, j, 0);
    bias.set(3, 5, kInfinity);
    for (std::size_t j = 0; j < 70; ++j) bias.set(4, j, std::numeric_limits<float>::lowest());
    for (std::size_t j = 0; j < 70; ++j) bias.set(5, j, -kInfinity);
    p.terms.masks[0] = bias.mask(Kind::bias);
    for (std::size_t i = 0; i < 4; ++i) p.q.set(7, i, kInfinity);
    const HeadResult r = run(p);
    for (std::size_t t : {3, 7}) EXPECT_TRUE(std::isnan(r.o.at(t, 0)) && std::isnan(r.l.at(t, 0)));
    EXPECT_EQ(r.m.at(4, 0), std::numeric_limits<float>::lowest());
    EXPECT_EQ(r.l.at(4, 0), 70);
    EXPECT_EQ(r.l.at(5, 0), 0);
    EXPECT_EQ(r.m.at(5, 0), -kInfinity);
    EXPECT_EQ(r.o.at(5, 0), 0);
  });
}

TEST(FlashForward, ScoresOfMinusInfinityAreNotAMask) {
  for_each_isa([] {
    HeadProblem p(DType::f32, {2, 70, 1, 2});
    p.q.set(0, 0, 1e30);
    for (std::size_t j = 0; j < 70; ++j) p.k.set(j, 0, -1e30);
    p.k.set(69, 0, -1e-30);
    const HeadResult one = run(p);
    EXPECT_EQ(one.o.at(0, 0), p.v.at(69, 0));
    p.k.set(69, 0, -1e30);
    const HeadResult none = run(p);
    EXPECT_TRUE(std::isnan(none.o.at(0, 0)) && std::isnan(none.l.at(0, 0)));
    EXPECT_FALSE(std::isnan(none.o.at(1, 0)));
  });
}

TEST(FlashForward, SameBitsHoweverQueriesAreSplit) {
  for_each_isa([] {
    for (const Arithmetic& dtype : all_types()) {
      HeadProblem p(dtype, {150, 700, 20, 10});
      if (dtype.drops()) p.dropout = {0.2, 1, 2};
      p.terms.diagonal = 500;
      const HeadResult whole = run(p, 150);
      for (std::size_t block : {1, 7, 16, 64, 100}) expect_same_bits(run(p, block), whole);
    }
  });
}

TEST(FlashForward, SameBitsWithAMaskThatHidesNothing) {
  for_each_isa([] {
    for (const Arithmetic& dtype : each_kernel()) {
      HeadProblem p(dtype, {70, 600, 20, 10});
      const HeadResult plain = run(p);
      const Array keep = hiding(DType::boolean, 70, 600, 0, 0, 1);
      p.terms.masks[0] = keep.mask(Kind::keep);
      expect_same_bits(run(p), plain);
      // A mask may say what the diagonal says.
      p.terms.masks[0] = {};
      p.terms.diagonal = 0;
      const HeadResult causal = run(p);
      Array lower(DType::boolean, 70, 600);
      for (std::size_t t = 0; t < 70; ++t)
        for (std::size_t j = 0; j < 600; ++j) lower.set(t, j, j <= t);
      p.terms.diagonal = kernels::kNoDiagonal;
      p.terms.masks[0] = lower.mask(Kind::keep);
      expect_same_bits(run(p), causal);
    }
  });
}

TEST(FlashForward, SameBitsOnEveryIsaWithFusedMultiplyAdd) {
  for (DType dtype : kTypes) {
    HeadProblem p(dtype, {150, 1100, 33, 20});
    p.terms.scale = 0.3;
    p.dropout = {0.1, 3, 4};
    Array bias = hiding(dtype, 150, 1100, 0.1, -kInfinity, 0.3);
    for (bool masked : {false, true}) {
      if (masked) p.terms.masks[0] = bias.mask(Kind::bias);
      std::map<std::string, HeadResult> results;
      for_each_isa([&] {
        if (has_fma(isa())) results.emplace(isa(), run(p));
      });
      for (const auto& [name, result] : results) {
        SCOPED_TRACE(name);
        expect_same_bits(result, results.begin()->second);
      }
    }
  }
}

TEST(FlashForward, OutputOfAnyStride) {
  for_each_isa([] {
    for (const Arithmetic& dtype : all_types()) {
      HeadProblem p(dtype, {20, 70, 12, 70});
      const HeadResult spread = run(p, 0, 3);
      expect_close(p, spread);
      expect_same_bits(spread, run(p));
    }
  });
}

// One key: o = v. Every 16-bit number goes through f32 and back.
TEST(FlashForward, EverySixteenBitValueComesBack) {
  for_each_isa([] {
    for (DType dtype : {DType::bf16, DType::f16}) {
      HeadProblem p(dtype, {1, 1, 1, 1});
      std::vector<std::uint16_t> values(65536), out(65536);
      for (std::size_t i = 0; i < 65536; ++i) values[i] = static_cast<std::uint16_t>(i);
      HeadResult r = run(p);
      kernels::FlashForwardArgs a = args_of(p, r);
      a.v = {values.data(), 65536, 1};
      a.o = {out.data(), 65536, 1};
      a.d_v = 65536;
      kernels::flash_forward(a);
      for (std::size_t i = 0; i < 65536; ++i) {
        const double v = element(values.data(), dtype, static_cast<std::ptrdiff_t>(i));
        const double o = element(out.data(), dtype, static_cast<std::ptrdiff_t>(i));
        ASSERT_TRUE(same(o, v)) << i << ": " << o << " not " << v;
      }
    }
  });
}

// Two keys of equal score: o is the mean of two neighbours, which is exact in f32; it has to be
// rounded to even.
TEST(FlashForward, SixteenBitResultsRoundTiesToEven) {
  for_each_isa([] {
    for (DType dtype : {DType::bf16, DType::f16}) {
      HeadProblem p(dtype, {1, 2, 1, 1});
      p.terms.scale = 0;
      const std::uint16_t end = dtype == DType::bf16 ? 0x7f80 : 0x7c00;
      std::vector<std::uint16_t> values(2 * std::size_t{end}), out(end);
      for (std::uint16_t i = 0; i < end; ++i) {
        values[i] = i;
        values[std::size_t{end} + i] = static_cast<std::uint16_t>(i + 1 < end ? i + 1 : i);
      }
      HeadResult r = run(p);
      kernels::FlashForwardArgs a = args_of(p, r);
      a.v = {values.data(), end, 1};
      a.o = {out.data(), end, 1};
      a.d_v = end;
      kernels::flash_forward(a);
      // bf16's smallest means are f32's subnormal numbers, its largest overflow in the sum
      const int first = dtype == DType::bf16 ? 0x80 : 0, last = end - 0x100;
      for (int i = first; i < last; ++i)
        ASSERT_EQ(out[static_cast<std::size_t>(i)], i + (i & 1)) << i;
    }
  });
}

TEST(FlashForward, NoQueriesNoWork) {
  kernels::FlashForwardArgs a;
  kernels::flash_forward(a);
  EXPECT_GE(kernels::flash_forward_block(DType::f32), 1u);
}

}  // namespace
}  // namespace headwise::test
