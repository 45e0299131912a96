// flash_decode against the definition, on every instruction set.
#include "kernels/decode/flash_decode.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decode/group.h"
#include "support/isas.h"

namespace headwise::test {
namespace {

using Kind = kernels::MaskMatrix::Kind;
using Sizes = HeadProblem::Sizes;
constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

void check(const Group& group, Cut cut = {}) {
  const std::vector<HeadResult> results = decode(group, cut);
  for (std::size_t h = 0; h < results.size(); ++h) {
    SCOPED_TRACE(testing::Message() << "head " << h);
    expect_close(group.heads[h], results[h]);
  }
}

void expect_same_bits(const std::vector<HeadResult>& a, const std::vector<HeadResult>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t h = 0; h < a.size(); ++h) expect_same_bits(a[h], b[h]);
}

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

TEST(FlashDecode, OddSizes) {
  for_each_isa([] {
    for (DType dtype : kTypes)
      for (const Sizes& s :
           {Sizes{1, 1, 1, 1}, Sizes{3, 2, 3, 2}, Sizes{1, 7, 8, 8}, Sizes{17, 63, 7, 5},
            Sizes{5, 64, 64, 64}, Sizes{2, 65, 16, 33}, Sizes{1, 130, 40, 40}, Sizes{1, 9, 80, 96},
            Sizes{2, 129, 129, 150}, Sizes{1, 33, 256, 300}, Sizes{4, 3, 0, 4}, Sizes{4, 5, 3, 0},
            Sizes{3, 0, 8, 8}})
        for (std::size_t n_heads : {1, 4, 5}) {
          SCOPED_TRACE(testing::Message() << name_of(dtype) << " T_q " << s.T_q << " T_k " << s.T_k
                                          << " d " << s.d_head << " d_v " << s.d_v);
          check(Group(dtype, n_heads, s));
          check(Group(dtype, n_heads, s, 1, 2));
        }
  });
}

TEST(FlashDecode, EveryWidth) {
  for_each_isa([] {
    for (DType dtype : kTypes)
      for (std::size_t d = 1; d < 70; ++d)
        for (std::size_t n_heads : {1, 2, 3})
          check(Group(dtype, n_heads, {1, 11, d, 70 - d}, d % 3));
  });
}

TEST(FlashDecode, EveryNumberOfRows) {
  for_each_isa([] {
    for (DType dtype : {DType::f32, DType::f64, DType::bf16})
      for (std::size_t T_q = 1; T_q <= 17; ++T_q)
        check(Group(dtype, T_q % 2 + 1, {T_q, 70 + T_q, 20, 12}));
  });
}

TEST(FlashDecode, TileAndLeafBoundaries) {
  for_each_isa([] {
    for (DType dtype : {DType::f32, DType::f64})
      for (std::size_t T_k : {511, 512, 513, 1023, 1025, 1600, 2049})
        check(Group(dtype, 1, {3, T_k, 8, 5}));
    check(Group(DType::bf16, 2, {1, 1025, 512, 3}));
  });
}

TEST(FlashDecode, DiagonalsOfAnyOffset) {
  for_each_isa([] {
    for (DType dtype : {DType::f32, DType::f64})
      for (std::ptrdiff_t diagonal : {0, 1, -1, 63, -70, 500, -500, 1500})
        for (const Sizes& s : {Sizes{20, 70, 4, 3}, Sizes{3, 1600, 4, 3}}) {
          SCOPED_TRACE(diagonal);
          check(Group(dtype, 2, s).each([&](HeadProblem& p) { p.terms.diagonal = diagonal; }));
        }
  });
}

TEST(FlashDecode, BooleanMasksOfEveryShape) {
  for_each_isa([] {
    for (DType dtype : {DType::f32, DType::f64})
      for (const Sizes& s : {Sizes{1, 70, 4, 3}, Sizes{5, 600, 4, 3}, Sizes{18, 129, 4, 3}})
        for (Kind kind : {Kind::keep, Kind::ignore})
          for (double share : {0.0, 0.3, 0.97, 1.0})
            for (int broadcast = 0; broadcast < 4; ++broadcast) {
              const Array mask =
                  hiding(DType::boolean, broadcast & 1 ? 1 : s.T_q, broadcast & 2 ? 1 : s.T_k,
                         share, kind == Kind::ignore, kind != Kind::ignore);
              Group group(dtype, 2, s);
              group.heads[1].terms.masks[0] = mask.mask(kind);
              check(group);
              check(group.each([&](HeadProblem& p) { p.terms.diagonal = 3; }));
            }
  });
}

TEST(FlashDecode, BiasesOfEveryDtypeAndShape) {
  for_each_isa([] {
    for (DType dtype : kTypes)
      for (DType bias : kTypes)
        for (int broadcast = 0; broadcast < 4; ++broadcast) {
          const Sizes s{3, 130, 4, 3};
          const std::size_t rows = broadcast & 1 ? 1 : s.T_q, cols = broadcast & 2 ? 1 : s.T_k;
          Array first(bias, rows, cols, 1, 2),
              second = hiding(bias, s.T_q, s.T_k, 0.2, -kInfinity, 0.5);
          first.fill(9);
          Group group(dtype, 2, s);
          group.heads[0].terms.masks[0] = first.mask(Kind::bias);
          check(group);
          check(group.each([&](HeadProblem& p) { p.terms.masks[1] = second.mask(Kind::bias); }));
        }
  });
}

TEST(FlashDecode, TwoMasksAndADiagonal) {
  for_each_isa([] {
    for (DType dtype : kTypes) {
      const Sizes s{7, 700, 8, 8};
      const Array padding = hiding(DType::boolean, 1, s.T_k, 0.5, 1, 0);
      const Array bias = hiding(dtype, s.T_q, s.T_k, 0.4, -kInfinity, 0.25);
      check(Group(dtype, 4, s).each([&](HeadProblem& p) {
        p.terms.masks[0] = padding.mask(Kind::ignore);
        p.terms.masks[1] = bias.mask(Kind::bias);
        p.terms.diagonal = 600;
      }));
    }
  });
}

TEST(FlashDecode, LastKeysEscapeMasksAndDiagonal) {
  for_each_isa([] {
    for (std::size_t appended : {1, 2, 66}) {
      const Sizes s{5, 650, 8, 8};
      const Array none = hiding(DType::boolean, s.T_q, s.T_k - appended, 1, 0, 1);
      const Array bias = hiding(DType::f32, s.T_q, s.T_k - appended, 0.5, -kInfinity, 1);
      Group group(DType::f32, 2, s);
      check(group.each([&](HeadProblem& p) {
        p.terms.n_maskable = s.T_k - appended;
        p.terms.diagonal = 0;
      }));
      check(group.each([&](HeadProblem& p) { p.terms.masks[0] = none.mask(Kind::keep); }));
      check(group.each([&](HeadProblem& p) {
        p.terms.masks[0] = bias.mask(Kind::bias);
        p.terms.diagonal = kernels::kNoDiagonal;
      }));
    }
  });
}

TEST(FlashDecode, AnyScale) {
  for_each_isa([] {
    for (DType dtype : {DType::f32, DType::f64, DType::bf16})
      for (double scale : {0.0, -0.7, 1e-3, 3.0, 1.0 / 3.0, kNaN, kInfinity, -kInfinity}) {
        SCOPED_TRACE(scale);
        check(Group(dtype, 2, {2, 70, 9, 4}).each([&](HeadProblem& p) { p.terms.scale = scale; }));
      }
  });
}

TEST(FlashDecode, DropoutByPosition) {
  for_each_isa([] {
    for (DType dtype : kTypes)
      for (double drop : {0.0, 0.25, 0.9, 1.0}) {
        Group group(dtype, 2, {3, 135, 8, 8});
        group.heads[0].dropout = {drop, 0x123456789abcdefu, (std::uint64_t{3} << 32) + 4};
        group.heads[1].dropout = {drop, 0x123456789abcdefu, (std::uint64_t{3} << 32) + 5};
        check(group);
        check(group.each([](HeadProblem& p) { p.terms.diagonal = 0; }));
      }
  });
}

// A hidden key and value may hold anything; one that some rows see reaches those alone.
TEST(FlashDecode, HiddenKeysAndValuesAreAbsent) {
  for_each_isa([] {
    for (DType dtype : kTypes)
      for (std::size_t T_k : {70u, 600u})
        for (double poison : {kNaN, kInfinity, -kInfinity, 1e30}) {
          const std::size_t hidden_key = 3, causal_key = 61, T_q = 6;
          Array mask = hiding(DType::boolean, T_q, T_k, 0.1, 0, 1);
          for (std::size_t t = 0; t < T_q; ++t) mask.set(t, hidden_key, 0);
          Group group(dtype, 2, {T_q, T_k, 8, 6});
          group.each([&](HeadProblem& p) {
            p.terms.masks[0] = mask.mask(Kind::keep);
            p.terms.diagonal = 58;  // row 3 is the first to see the causal key
          });
          const auto clean = decode(group);
          HeadProblem& p = group.heads[0];
          for (std::size_t i = 0; i < 8; ++i) p.k.set(hidden_key, i, poison);
          for (std::size_t i = 0; i < 6; ++i) p.v.set(hidden_key, i, poison);
          expect_same_bits(decode(group), clean);
          for (std::size_t i = 0; i < 6; i += 2) p.v.set(causal_key, i, poison);
          group.share_keys();
          check(group);
          const auto seen = decode(group);
          for (std::size_t t = 0; t < 3; ++t)
            for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(seen[1].o.at(t, i), clean[1].o.at(t, i));
        }
  });
}

TEST(FlashDecode, VisibleNaNReachesItsRowsOnly) {
  for_each_isa([] {
    for (DType dtype : kTypes)
      for (int where = 0; where < 4; ++where) {
        SCOPED_TRACE(where);
        Array bias(dtype, 6, 150);
        for (std::size_t t = 0; t < 6; ++t)
          for (std::size_t j = 0; j < 150; ++j) bias.set(t, j, 0);
        Group group(dtype, 2, {6, 150, 8, 6});
        group.each([](HeadProblem& p) { p.terms.diagonal = 97; });
        HeadProblem& p = group.heads[0];
        if (where == 0) p.q.set(2, 3, kNaN);
        if (where == 1) p.k.set(100, 3, kNaN);
        if (where == 2) p.v.set(100, 3, kNaN);
        if (where == 3) bias.set(3, 5, kNaN);
        if (where == 3) p.terms.masks[0] = bias.mask(Kind::bias);
        group.share_keys();
        check(group);
      }
  });
}

TEST(FlashDecode, ScoresOfMinusInfinityAreNotAMask) {
  for_each_isa([] {
    for (std::size_t T_k : {70u, 600u}) {
      Group group(DType::f32, 1, {2, T_k, 1, 2});
      HeadProblem& p = group.heads[0];
      p.q.set(0, 0, 1e30);
      for (std::size_t j = 0; j < T_k; ++j) p.k.set(j, 0, -1e30);
      p.k.set(T_k - 1, 0, -1e-30);
      const HeadResult one = decode(group)[0];
      EXPECT_EQ(one.o.at(0, 0), p.v.at(T_k - 1, 0));
      p.k.set(T_k - 1, 0, -1e30);
      const HeadResult none = decode(group)[0];
      EXPECT_TRUE(std::isnan(none.o.at(0, 0)) && std::isnan(none.l.at(0, 0)));
      EXPECT_FALSE(std::isnan(none.o.at(1, 0)));
    }
  });
}

// Rows and leaves may be shared out in any way.
TEST(FlashDecode, SameBitsHoweverItIsCut) {
  for_each_isa([] {
    for (DType dtype : kTypes) {
      Group group(dtype, 3, {5, 512 * 11 + 100, 20, 10});
      group.each([](HeadProblem& p) {
        p.dropout = {0.2, 1, 2};
        p.terms.diagonal = 5500;
      });
      const auto whole = decode(group, {.n_leaves = 16});
      for (std::size_t n_leaves : {1, 2, 4, 8})
        expect_same_bits(decode(group, {.n_leaves = n_leaves}), whole);
      for (std::size_t n_rows : {1, 2, 3, 7})
        expect_same_bits(decode(group, {.n_leaves = 2, .n_rows = n_rows}), whole);
    }
  });
}

TEST(FlashDecode, SameBitsWithAMaskThatHidesNothing) {
  for_each_isa([] {
    for (DType dtype : kTypes) {
      Group group(dtype, 2, {3, 600, 20, 10});
      const auto plain = decode(group);
      const Array keep = hiding(DType::boolean, 3, 600, 0, 0, 1);
      group.each([&](HeadProblem& p) { p.terms.masks[0] = keep.mask(Kind::keep); });
      expect_same_bits(decode(group), plain);
      // A mask may say what the diagonal says.
      group.each([](HeadProblem& p) {
        p.terms.masks[0] = {};
        p.terms.diagonal = 100;
      });
      const auto causal = decode(group);
      Array lower(DType::boolean, 3, 600);
      for (std::size_t t = 0; t < 3; ++t)
        for (std::size_t j = 0; j < 600; ++j) lower.set(t, j, j <= t + 100);
      group.each([&](HeadProblem& p) {
        p.terms.diagonal = kernels::kNoDiagonal;
        p.terms.masks[0] = lower.mask(Kind::keep);
      });
      expect_same_bits(decode(group), causal);
    }
  });
}

TEST(FlashDecode, SameBitsOnEveryIsaWithFusedMultiplyAdd) {
  for (DType dtype : kTypes)
    for (std::size_t d : {1, 4, 8, 12, 33, 40, 64, 100}) {
      Group group(dtype, 3, {2, 1100, d, d + 2});
      Array bias = hiding(dtype, 2, 1100, 0.1, -kInfinity, 0.3);
      group.each([](HeadProblem& p) {
        p.terms.scale = 0.3;
        p.dropout = {0.1, 3, 4};
      });
      for (bool masked : {false, true}) {
        if (masked) group.heads[1].terms.masks[0] = bias.mask(Kind::bias);
        std::map<std::string, std::vector<HeadResult>> results;
        for_each_isa([&] {
          if (has_fma(isa())) results.emplace(isa(), decode(group));
        });
        for (const auto& [name, result] : results) {
          SCOPED_TRACE(name);
          expect_same_bits(result, results.begin()->second);
        }
      }
    }
}

TEST(FlashDecode, OutputOfAnyStride) {
  for_each_isa([] {
    for (DType dtype : kTypes) {
      const Group group(dtype, 2, {2, 70, 12, 70});
      check(group, {.step = 3});
      expect_same_bits(decode(group, {.step = 3}), decode(group));
    }
  });
}

}  // namespace
}  // namespace headwise::test
