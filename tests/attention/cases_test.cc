// Publicly reported faults of attention implementations as tests, under the ids of docs/cases.md:
// masks, causal alignment, numbers and dropout. Shapes and layouts: cases_shapes_test.cc.
// Expected values are derived from the definition, not taken from an implementation.
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention.h"
#include "headwise/error.h"
#include "support/attention_reference.h"
#include "support/isas.h"
#include "support/l4.h"

namespace headwise {
namespace {

using test::for_each_isa;
using test::kInfinity;
using test::kNaN;
using test::L4;
using test::StridedTensor;
using test::tensor_of;

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
constexpr double kFirst = 10.0, kFirstTwo = 50.0 / 3, kFirstThree = 70.0 / 3, kAll = 30.0;

AttentionOptions with_mask(const Mask& mask) {
  AttentionOptions options;
  options.mask = mask;
  return options;
}

AttentionOptions causal(CausalAlign align) {
  AttentionOptions options;
  options.causal = align;
  return options;
}

// ---- rows without a key

TEST(Cases, FM01_RowWithoutAllowedKeyIsZero) {
  for (const DType dtype : kDTypes) {
    StridedTensor keep(DType::boolean, {4, 4}), bias(dtype, {4, 4});
    keep.fill([](const Shape& at) { return at[0] == 1 ? 0.0 : 1.0; });
    bias.fill([](const Shape& at) { return at[0] == 1 ? -kInfinity : 0.0; });
    L4(4, dtype).expect(with_mask(Mask::keep(keep)), {kAll, 0, kAll, kAll});
    L4(4, dtype).expect(with_mask(Mask::bias(bias)), {kAll, 0, kAll, kAll});
  }
}

// A band: the first blocks of keys are hidden from most rows.
TEST(Cases, FM06_FirstBlocksHidden) {
  for_each_isa([] {
    for (const std::size_t T : {64u, 128u, 129u, 512u, 640u, 1024u, 1025u}) {
      StridedTensor q(DType::f32, {T, 1}), v(DType::f32, {T, 1}), band(DType::f32, {T, T});
      q.fill([](const Shape&) { return 0.0; });
      v.fill([](const Shape& at) { return static_cast<double>(at[0]); });
      band.fill(
          [](const Shape& at) { return at[1] <= at[0] && at[0] < at[1] + 10 ? 0.0 : -kInfinity; });
      const Tensor o = scaled_dot_product_attention(q, q, v, with_mask(Mask::bias(band)));
      for (std::size_t i = 0; i < T; ++i) {
        const double n = static_cast<double>(i);
        ASSERT_NEAR(o.values<float>()[i], i < 10 ? n / 2 : n - 4.5, 1e-6 * n) << T << " " << i;
      }
    }
  });
}

TEST(Cases, FM07_EmptinessIsDecidedByTheMask) {
  const StridedTensor none = tensor_of(DType::boolean, {1, 4}, {0, 0, 0, 0});
  const StridedTensor others = tensor_of(DType::boolean, {1, 4}, {0, 1, 1, 1});
  for (const DType dtype : kDTypes) {
    L4(1, dtype).expect(with_mask(Mask::keep(none)), {0});
    AttentionOptions options = causal(CausalAlign::top_left);
    options.mask = Mask::keep(others);  // causal leaves key 0, the mask removes it
    L4(1, dtype).expect(options, {0});
  }
  // A finite number is no mask, however low: it drowns the scores, and all rows are the mean.
  const StridedTensor low = tensor_of(DType::f32, {1, 4}, std::vector<double>(4, -1e30));
  L4(1, DType::f32).expect(with_mask(Mask::bias(low)), {25});
}

TEST(Cases, FM09_BottomRightWithMoreQueriesThanKeys) {
  const StridedTensor q = tensor_of(DType::f32, {5, 1}, std::vector<double>(5, 0.0));
  const StridedTensor k = tensor_of(DType::f32, {2, 1}, {0, 0});
  const StridedTensor v = tensor_of(DType::f32, {2, 1}, {1, 3});
  for_each_isa([&] {
    test::expect_values(scaled_dot_product_attention(q, k, v, causal(CausalAlign::bottom_right)),
                        {0, 0, 0, 1, 2}, 0);
  });
}

// ---- numbers

TEST(Cases, NM01_HiddenKeysAndValuesAreNeverRead) {
  const StridedTensor keep = tensor_of(DType::boolean, {1, 4}, {1, 1, 1, 0});
  for_each_isa([&] {
    for (const DType dtype : kDTypes) {
      L4 clean(1, dtype);
      const Tensor expected =
          scaled_dot_product_attention(clean.q, clean.k, clean.v, with_mask(Mask::keep(keep)));
      test::expect_values(expected, {kFirstThree}, test::tolerance_of(dtype));
      for (const double poison : {kNaN, kInfinity, -kInfinity, 1e38})
        for (const bool in_key : {true, false}) {
          L4 poisoned(1, dtype);
          (in_key ? poisoned.k : poisoned.v).set({0, 0, 3, 0}, poison);
          const Tensor o = scaled_dot_product_attention(poisoned.q, poisoned.k, poisoned.v,
                                                        with_mask(Mask::keep(keep)));
          EXPECT_EQ(test::values_of(o), test::values_of(expected)) << poison << in_key;
        }
      L4 visible(1, dtype);
      visible.v.set({0, 0, 0, 0}, kNaN);
      test::expect_values(scaled_dot_product_attention(visible.q, visible.k, visible.v,
                                                       with_mask(Mask::keep(keep))),
                          {kNaN}, 0);
    }
  });
}

TEST(Cases, NM03_NaNQueriesAreNotEmptyRows) {
  for_each_isa([] {
    for (const DType dtype : kDTypes) {
      const StridedTensor q = tensor_of(dtype, {2, 2}, {0, 0, kNaN, kNaN});
      const StridedTensor k = tensor_of(dtype, {3, 2}, std::vector<double>(6, 0.0));
      const StridedTensor v = tensor_of(dtype, {3, 1}, {1, 1, 1});
      test::expect_values(scaled_dot_product_attention(q, k, v), {1, kNaN}, 0);
      AttentionOptions options;
      options.scale = kNaN;
      test::expect_values(scaled_dot_product_attention(q, k, v, options), {kNaN, kNaN}, 0);
    }
  });
}

TEST(Cases, NM04_HiddenBeatsAnyScore) {
  const StridedTensor q = tensor_of(DType::f32, {1, 2}, {-400, 0});
  const StridedTensor k = tensor_of(DType::f32, {2, 2}, {400, 0, 0, 0});
  const StridedTensor v = tensor_of(DType::f32, {2, 1}, {1, 2});
  const StridedTensor keep = tensor_of(DType::boolean, {1, 2}, {1, 0});
  AttentionOptions options = with_mask(Mask::keep(keep));
  options.scale = 1.0;
  for_each_isa(
      [&] { test::expect_values(scaled_dot_product_attention(q, k, v, options), {1}, 0); });
}

TEST(Cases, NM06_ScoresBeyondHalfRange) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const StridedTensor q = tensor_of(dtype, {1, 64}, std::vector<double>(64, 300.0));
    StridedTensor k(dtype, {2, 64});
    k.fill([](const Shape& at) { return at[0] == 0 ? 300.0 : -300.0; });
    const StridedTensor v = tensor_of(dtype, {2, 1}, {1, 2});
    for_each_isa([&] { test::expect_values(scaled_dot_product_attention(q, k, v), {1}, 0); });
  }
}

// Halves as good as their last rounding: one unit in the last place of the exact result.
void expect_last_rounding_only(DType dtype, const Shape& shape, double deviation) {
  std::mt19937 random(5);
  StridedTensor q(dtype, shape), k(dtype, shape), v(dtype, shape);
  q.fill_normal(random, deviation);
  k.fill_normal(random, deviation);
  v.fill_normal(random, deviation);
  const auto reference = test::reference_call(q, k, v);
  for_each_isa([&] { test::expect_output(reference, scaled_dot_product_attention(q, k, v)); });
}

TEST(Cases, NM08_ScaleIsAppliedInFullPrecision) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const double deviation : {1.0, 5.0, 10.0})
      expect_last_rounding_only(dtype, {4, 64, 64}, deviation);
}

TEST(Cases, NM09_LargeHalvesWithinOneUnit) {
  expect_last_rounding_only(DType::bf16, {240, 128}, 10.0);
}

TEST(Cases, NM11_ScaleZeroIsAValue) {
  AttentionOptions options;
  L4(1).expect(options, {kAll});
  options.scale = 0.0;
  L4(1).expect(options, {25});
}

TEST(Cases, NM12_ScaleIsUsed) {
  AttentionOptions options;
  options.scale = 2.0;
  L4(1).expect(options, {1000.0 / 30});
}

// inf - inf: NaN as in torch, in that row alone.
TEST(Cases, NM16_InfiniteBiasStaysInItsRow) {
  for (const DType dtype : kDTypes) {
    StridedTensor bias(dtype, {3, 4});
    bias.fill([](const Shape& at) { return at[0] == 1 && at[1] == 0 ? kInfinity : 0.0; });
    L4(3, dtype).expect(with_mask(Mask::bias(bias)), {kAll, kNaN, kAll});
  }
}

// ---- causal

TEST(Cases, CA01_BothAlignmentsByName) {
  L4(1).expect(causal(CausalAlign::top_left), {kFirst});
  L4(2).expect(causal(CausalAlign::top_left), {kFirst, kFirstTwo});
  L4(1).expect(causal(CausalAlign::bottom_right), {kAll});
  L4(2).expect(causal(CausalAlign::bottom_right), {kFirstThree, kAll});
}

TEST(Cases, CA03_OffsetZeroWithoutPast) { L4(1).expect(causal(CausalAlign::top_left), {kFirst}); }

// A count of valid keys for each sample, which also sets the diagonal: by a mask for the batch, and
// by a bottom-right call on the valid keys of each sample.
TEST(Cases, CA05_KeyCountsPerSample) {
  StridedTensor keep(DType::boolean, {2, 1, 2, 4});
  const std::size_t n_valid[] = {4, 2};
  keep.fill([&](const Shape& at) {
    return at[3] < n_valid[at[0]] && at[3] + 2 <= at[2] + n_valid[at[0]] ? 1.0 : 0.0;
  });
  L4(2, DType::f64, 2).expect(with_mask(Mask::keep(keep)), {kFirstThree, kAll, kFirst, kFirstTwo});
  const L4 one(2);
  ConstTensorView k = one.k, v = one.v;
  k.shape[2] = v.shape[2] = 2;
  test::expect_values(scaled_dot_product_attention(one.q, k, v, causal(CausalAlign::bottom_right)),
                      {kFirst, kFirstTwo}, 1e-14);
}

TEST(Cases, CA06_CausalAndMaskCombine) {
  StridedTensor keep(DType::boolean, {4, 4});
  keep.fill([](const Shape& at) { return at[1] == 0 ? 0.0 : 1.0; });
  AttentionOptions options = with_mask(Mask::keep(keep));
  options.causal = CausalAlign::top_left;
  for (const DType dtype : kDTypes) L4(4, dtype).expect(options, {0, 20, 26, 290.0 / 9});
}

// A window of `left` earlier tokens and the own one, as a band mask.
TEST(Cases, CA13_WindowCountsTheOwnToken) {
  const StridedTensor q = tensor_of(DType::f32, {4, 1}, {0, 0, 0, 0});
  const StridedTensor v = tensor_of(DType::f32, {4, 1}, {10, 20, 30, 40});
  const auto window = [&](std::size_t left) {
    StridedTensor keep(DType::boolean, {4, 4});
    keep.fill([&](const Shape& at) { return at[0] <= at[1] + left ? 1.0 : 0.0; });
    AttentionOptions options = with_mask(Mask::keep(keep));
    options.causal = CausalAlign::top_left;
    return scaled_dot_product_attention(q, q, v, options);
  };
  for_each_isa([&] {
    test::expect_values(window(1), {10, 15, 25, 35}, 1e-6);
    test::expect_values(window(2), {10, 15, 20, 30}, 1e-6);
    EXPECT_EQ(test::values_of(window(3)), test::values_of(scaled_dot_product_attention(
                                              q, q, v, causal(CausalAlign::top_left))));
  });
}

// ---- masks

TEST(Cases, MS01_MeaningIsPartOfTheMask) {
  const StridedTensor first = tensor_of(DType::boolean, {1, 4}, {1, 0, 0, 0});
  L4(1).expect(with_mask(Mask::keep(first)), {kFirst});
  L4(1).expect(with_mask(Mask::ignore(first)), {290.0 / 9});
}

TEST(Cases, MS02_BooleansAreNotAdded) {
  const StridedTensor keep = tensor_of(DType::boolean, {1, 4}, {1, 0, 0, 0});
  const StridedTensor bias = tensor_of(DType::f64, {1, 4}, {1, 0, 0, 0});
  L4(1).expect(with_mask(Mask::keep(keep)), {kFirst});
  const double e = std::exp(1.0);  // asked for by name, it is added: weights e : 2 : 3 : 4
  L4(1).expect(with_mask(Mask::bias(bias)), {(10 * e + 40 + 90 + 160) / (e + 9)});
}

TEST(Cases, MS08_ThreeDimsAlignToTheHeads) {
  std::mt19937 random(1);
  const auto call = [&](std::size_t n_heads, const Shape& mask_shape) {
    StridedTensor q(DType::f32, {2, n_heads, 3, 4}), k(DType::f32, {2, n_heads, 5, 4}),
        keep(DType::boolean, mask_shape);
    q.fill_normal(random);
    k.fill_normal(random);
    keep.fill_flags(random, 0.5);
    const AttentionOptions options = with_mask(Mask::keep(keep));
    const Tensor o = scaled_dot_product_attention(q, k, k, options);
    test::expect_output(test::reference_call(q, k, k, options), o);
  };
  call(2, {2, 3, 5});     // B = n_heads: one mask for each head
  call(4, {2, 1, 3, 5});  // one for each sample
  try {
    call(4, {2, 3, 5});
    ADD_FAILURE() << "no exception";
  } catch (const ArgumentError& error) {
    EXPECT_NE(std::string(error.what()).find("(B, 1, T_q, T_k), here (2, 1, 3, 5)"),
              std::string::npos)
        << error.what();
  }
}

TEST(Cases, MS09_FloatMasksBesideHalves) {
  const StridedTensor bias = tensor_of(DType::f32, {1, 4}, {0, 0, -kInfinity, 0});
  const double expected = (10.0 + 2 * 20 + 4 * 40) / 7;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const L4 fixture(1, dtype);
    fixture.expect(with_mask(Mask::bias(bias)), {expected});
    EXPECT_EQ(scaled_dot_product_attention(fixture.q, fixture.k, fixture.v).dtype(), dtype);
  }
  for (const DType wrong : {DType::f64, DType::bf16, DType::f16, DType::i32, DType::u8}) {
    const StridedTensor mask(wrong, {1, 4});
    EXPECT_THROW(L4(1, DType::f32).expect(with_mask(Mask::bias(mask)), {}), DTypeError);
  }
}

// The caller pads a short mask; a mask of the wrong length is an error here.
TEST(Cases, MS11_ShortMaskIsPaddedWithHidden) {
  const StridedTensor bias = tensor_of(DType::f64, {1, 4}, {0, 0, -kInfinity, -kInfinity});
  L4(1).expect(with_mask(Mask::bias(bias)), {kFirstTwo});
  const StridedTensor two = tensor_of(DType::f64, {1, 2}, {0, 0});
  EXPECT_THROW(L4(1).expect(with_mask(Mask::bias(two)), {}), ArgumentError);
}

TEST(Cases, MS13_BiasOfEveryTypeBesideCausal) {
  for (const DType dtype : kDTypes) {
    const StridedTensor zeros = tensor_of(dtype, {1, 4}, {0, 0, 0, 0});
    AttentionOptions options = with_mask(Mask::bias(zeros));
    options.causal = CausalAlign::top_left;
    L4(4, dtype).expect(options, {kFirst, kFirstTwo, kFirstThree, kAll});
  }
}

// The stage that headwise returns: probabilities (mode 3).
TEST(Cases, MS15_WeightsAreProbabilities) {
  const StridedTensor q = tensor_of(DType::f32, {1, 1}, {1});
  const StridedTensor k = tensor_of(DType::f32, {2, 1}, {0, 4});
  const StridedTensor bias = tensor_of(DType::f32, {1, 2}, {0, -kInfinity});
  StridedTensor o(DType::f32, {1, 1}), weights(DType::f32, {1, 2});
  AttentionExtras extras;
  extras.weights = weights.view();
  for_each_isa([&] {
    scaled_dot_product_attention(q, k, k, with_mask(Mask::bias(bias)), o.view(), extras);
    test::expect_values(weights, {1, 0}, 0);
  });
}

// ---- dropout

TEST(Cases, WD01_WeightsAreAfterDropout) {
  StridedTensor q(DType::f32, {64, 1}), k(DType::f32, {1, 1});
  q.fill([](const Shape&) { return 1.0; });
  k.fill([](const Shape&) { return 1.0; });
  StridedTensor o(DType::f32, {64, 1}), weights(DType::f32, {64, 1});
  AttentionExtras extras;
  extras.weights = weights.view();
  AttentionOptions options;
  options.dropout_p = 0.2;
  options.dropout_seed = 11;
  for_each_isa([&] {
    scaled_dot_product_attention(q, k, k, options, o.view(), extras);
    int kept = 0;
    for (const double w : test::values_of(weights)) {
      EXPECT_TRUE(w == 0.0 || w == 1.25) << w;
      kept += w != 0.0 ? 1 : 0;
    }
    EXPECT_GT(kept, 40);
    EXPECT_LT(kept, 62);
    EXPECT_EQ(test::values_of(o), test::values_of(weights));
  });
}

// Dropout is what the options say; there is no training mode to forget. The seed decides.
TEST(Cases, WD02_DropoutIsAppliedWheneverAskedFor) {
  std::mt19937 random(2);
  const StridedTensor q = StridedTensor(DType::f32, {2, 40, 8}).fill_normal(random);
  const auto run = [&](double p, std::uint64_t seed) {
    AttentionOptions options;
    options.dropout_p = p;
    options.dropout_seed = seed;
    return test::values_of(scaled_dot_product_attention(q, q, q, options));
  };
  EXPECT_EQ(run(0.5, 1), run(0.5, 1));
  EXPECT_NE(run(0.5, 1), run(0.5, 2));
  EXPECT_NE(run(0.5, 1), run(0.0, 1));
  EXPECT_EQ(run(0.0, 1), run(0.0, 2));
}

TEST(Cases, WD04_DropoutRange) {
  AttentionOptions options;
  for (const double p : {-0.1, 1.5, kNaN}) {
    options.dropout_p = p;
    EXPECT_THROW(L4(1).expect(options, {}), ArgumentError);
  }
  options.dropout_p = 1.0;
  for (const DType dtype : kDTypes) L4(2, dtype).expect(options, {0, 0});
}

}  // namespace
}  // namespace headwise
