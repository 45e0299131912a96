// The gradients of whole calls against their definition in double, against central differences,
// and against themselves: the same bits however a call is cut.
#include "headwise/attention_backward.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/plan.h"
#include "headwise/runtime.h"
#include "support/gradient_reference.h"
#include "support/isas.h"
#include "support/kernels.h"
#include "support/threads.h"

namespace headwise {
namespace {

using test::BackwardRun;
using test::Memory;
using test::StridedTensor;

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

// A call of some options, drawn.
struct RandomCall {
  StridedTensor q, k, v, d_o, mask, second_mask;
  AttentionOptions options;

  RandomCall(unsigned seed, DType dtype, const std::vector<std::size_t>& lengths) {
    std::mt19937 random(seed);
    const auto pick = [&](const auto& from) {
      return from[std::uniform_int_distribution<std::size_t>(0, std::size(from) - 1)(random)];
    };
    const auto chance = [&](double p) { return std::bernoulli_distribution(p)(random); };
    constexpr std::size_t kWidths[] = {0, 1, 3, 8, 16, 17, 33, 64};
    const std::size_t T_q = pick(lengths), T_k = pick(lengths), d_head = pick(kWidths),
                      d_v = pick(kWidths), group = chance(0.4) ? 2 + chance(0.3) : 1,
                      n_kv = 1 + chance(0.5), B = 1 + chance(0.4);
    const std::size_t n_heads = n_kv * group;
    const auto batch = [&] { return chance(0.85) ? B : std::size_t{1}; };
    const auto memory = [&] { return pick(test::kWritable); };
    const std::size_t B_q = batch(), B_k = batch(), B_v = batch();
    const std::size_t B_o = std::max({B_q, B_k, B_v});
    const std::size_t k_heads = chance(0.9) ? n_kv : 1;
    q = StridedTensor(dtype, {B_q, n_heads, T_q, d_head}, memory());
    k = StridedTensor(dtype, {B_k, k_heads, T_k, d_head}, memory());
    v = StridedTensor(dtype, {B_v, n_kv, T_k, d_v}, memory());
    d_o = StridedTensor(dtype, {B_o, n_heads, T_q, d_v}, memory());
    for (StridedTensor* x : {&q, &k, &v, &d_o}) x->fill_normal(random);
    const auto draw_mask = [&](StridedTensor& to, std::optional<Mask>& option) {
      const int kind = std::uniform_int_distribution<int>(0, 3)(random);
      if (kind == 0) return;
      const Shape shape{chance(0.7) ? B_o : 1, chance(0.5) ? n_heads : 1, chance(0.8) ? T_q : 1,
                        chance(0.9) ? T_k - options.n_always_visible : 1};
      if (kind == 3) {
        const bool wide = dtype != DType::f64 && chance(0.3);
        to = StridedTensor(wide ? DType::f32 : dtype, shape, memory());
        to.fill_normal(random);
        test::for_each_index(shape, [&](const Shape& at) {
          if (chance(0.1)) to.set(at, -test::kInfinity);
        });
        option = Mask::bias(to);
        return;
      }
      to = StridedTensor(DType::boolean, shape, memory());
      to.fill_flags(random, kind == 1 ? 0.8 : 0.2);
      option = kind == 1 ? Mask::keep(to) : Mask::ignore(to);
    };
    if (T_k > 1 && chance(0.2)) options.n_always_visible = 1;
    if (chance(0.6)) draw_mask(mask, options.mask);
    if (chance(0.2)) draw_mask(second_mask, options.second_mask);
    if (chance(0.4))
      options.causal = chance(0.5) ? CausalAlign::top_left : CausalAlign::bottom_right;
    if (chance(0.2)) options.scale = 0.3;
    if (chance(0.3)) {
      options.dropout_p = chance(0.1) ? 1.0 : 0.3;
      options.dropout_seed = seed;
    }
  }
  BackwardRun run(Memory memory = Memory::contiguous) const {
    return {q, k, v, options, d_o, memory};
  }
  void check(Memory memory = Memory::contiguous) const {
    run(memory).expect(test::reference_gradients(q, k, v, options, d_o));
  }
};

TEST(AttentionBackward, EqualsTheDefinitionForEveryPairOfOptions) {
  unsigned seed = 0;
  for (const DType dtype : kDTypes)
    for (int n = 0; n < 150; ++n) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " " + std::string(name_of(dtype)));
      RandomCall(seed, dtype, {0, 1, 3, 17, 65, 130}).check(test::kWritable[seed % 6]);
      ++seed;
      if (HasFatalFailure()) return;
    }
}

TEST(AttentionBackward, EqualsTheDefinitionOnEveryInstructionSet) {
  test::for_each_isa([] {
    for (unsigned seed = 1000; seed < 1040; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      RandomCall(seed, kDTypes[seed % 4], {3, 17, 70, 130}).check();
      if (HasFatalFailure()) return;
    }
  });
}

// Row max and row sum come from every kernel of the forward call.
TEST(AttentionBackward, EqualsTheDefinitionAfterEveryKernel) {
  test::for_each_kernel([] {
    for (unsigned seed = 1500; seed < 1540; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      RandomCall(seed, kDTypes[seed % 4], {1, 2, 17, 66}).check();
      if (HasFatalFailure()) return;
    }
  });
}

TEST(AttentionBackward, EqualsTheDefinitionForLongCalls) {
  for (unsigned seed = 2000; seed < 2003; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomCall(seed, DType::f32, {300, 1000}).check();
  }
}

// A loss on the weights themselves, of each head and averaged, beside one on the output or alone.
TEST(AttentionBackward, GradientsThroughReturnedWeights) {
  test::for_each_isa([] {
    for (unsigned seed = 2500; seed < 2524; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const DType dtype = kDTypes[seed % 4];
      const RandomCall call(seed, dtype, {1, 17, 70, 130});
      const Shape o = call.d_o.shape();
      std::mt19937 random(seed);
      StridedTensor each(dtype, {o[0], o[1], o[2], call.k.shape()[2]}, test::kWritable[seed % 6]);
      StridedTensor average(dtype, {o[0], o[2], call.k.shape()[2]}, test::kWritable[seed % 5]);
      each.fill_normal(random);
      average.fill_normal(random, 3.0);
      const ConstTensorView d_each = seed % 3 != 0 ? each.view() : ConstTensorView();
      const ConstTensorView d_average = seed % 3 != 1 ? average.view() : ConstTensorView();
      const BackwardRun run(call.q, call.k, call.v, call.options, call.d_o, Memory::contiguous,
                            d_each, d_average);
      run.expect(test::reference_gradients(call.q, call.k, call.v, call.options, call.d_o, d_each,
                                           d_average));
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(AttentionBackward, GradientsThroughWeightsEqualCentralDifferences) {
  std::mt19937 random(26);
  const Shape shape{1, 2, 4, 3}, scores{1, 2, 4, 4}, mean{1, 4, 4};
  StridedTensor q(DType::f64, shape), k(DType::f64, shape), v(DType::f64, shape),
      d_o(DType::f64, shape), d_weights(DType::f64, scores), d_average(DType::f64, mean);
  for (StridedTensor* x : {&q, &k, &v, &d_o, &d_weights, &d_average}) x->fill_normal(random);
  AttentionOptions options;
  options.causal = CausalAlign::top_left;
  options.dropout_p = 0.3;
  const auto sum_of_products = [&] {
    StridedTensor o(DType::f64, shape), weights(DType::f64, scores), average(DType::f64, mean);
    AttentionExtras extras;
    extras.weights = weights.view();
    extras.average_weights = average.view();
    scaled_dot_product_attention(q, k, v, options, o.view(), extras);
    double sum = 0;
    test::for_each_index(shape, [&](const Shape& at) { sum += o(at) * d_o(at); });
    test::for_each_index(scores, [&](const Shape& at) { sum += weights(at) * d_weights(at); });
    test::for_each_index(mean, [&](const Shape& at) { sum += average(at) * d_average(at); });
    return sum;
  };
  const BackwardRun run(q, k, v, options, d_o, Memory::contiguous, d_weights, d_average);
  const auto check = [&](StridedTensor& x, const StridedTensor& gradient) {
    test::for_each_index(shape, [&](const Shape& at) {
      constexpr double kStep = 1e-5;
      const double before = x(at);
      x.set(at, before + kStep);
      const double above = sum_of_products();
      x.set(at, before - kStep);
      const double below = sum_of_products();
      x.set(at, before);
      EXPECT_NEAR(gradient(at), (above - below) / (2 * kStep), 1e-8) << to_string(at);
    });
  };
  check(q, run.dq);
  check(k, run.dk);
  check(v, run.dv);
}

// sum(o * d_o), whose derivatives the gradients are.
double loss(const RandomCall& call) {
  StridedTensor o(DType::f64, call.d_o.shape());
  scaled_dot_product_attention(call.q, call.k, call.v, call.options, o.view());
  double sum = 0;
  test::for_each_index(o.shape(), [&](const Shape& at) { sum += o(at) * call.d_o(at); });
  return sum;
}

void expect_differences(RandomCall& call, StridedTensor& x, const StridedTensor& gradient) {
  double largest = 1e-3;
  test::for_each_index(
      x.shape(), [&](const Shape& at) { largest = std::max(largest, std::abs(gradient(at))); });
  test::for_each_index(x.shape(), [&](const Shape& at) {
    constexpr double kStep = 1e-3;
    const double before = x(at);
    if (std::isinf(before)) return;
    const auto at_step = [&](double step) {
      x.set(at, before + step);
      return loss(call);
    };
    // Richardson: an error of step^4.
    const double wide = (at_step(2 * kStep) - at_step(-2 * kStep)) / (4 * kStep);
    const double near = (at_step(kStep) - at_step(-kStep)) / (2 * kStep);
    x.set(at, before);
    EXPECT_NEAR(gradient(at), (4 * near - wide) / 3, 1e-7 * largest) << to_string(at);
  });
}

TEST(AttentionBackward, EqualsCentralDifferences) {
  for (unsigned seed = 3000; seed < 3030; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomCall call(seed, DType::f64, {1, 3, 7});
    if (call.options.dropout_p == 1.0) call.options.dropout_p = 0.5;
    const BackwardRun run = call.run();
    expect_differences(call, call.q, run.dq);
    expect_differences(call, call.k, run.dk);
    expect_differences(call, call.v, run.dv);
    if (run.d_mask.view().data != nullptr) expect_differences(call, call.mask, run.d_mask);
    if (run.d_second_mask.view().data != nullptr)
      expect_differences(call, call.second_mask, run.d_second_mask);
  }
}

TEST(AttentionBackward, SameBitsForAnyNumberOfThreads) {
  for (unsigned seed = 4000; seed < 4012; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RandomCall call(seed, kDTypes[seed % 4], {200, 300, 520});
    std::vector<std::byte> first;
    for (const int n : {1, 2, 5}) {
      const test::ScopedThreads threads(n);
      if (n == 1)
        first = call.run().bits();
      else
        EXPECT_EQ(call.run().bits(), first) << n << " threads";
    }
  }
}

TEST(AttentionBackward, SameBitsWithFusedMultiplyAdd) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (unsigned seed = 5000; seed < 5010; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const RandomCall call(seed, dtype, {17, 70, 300});
      std::vector<std::byte> first;
      test::for_each_isa([&] {
        if (!test::has_fma(isa())) return;
        const std::vector<std::byte> bits = call.run().bits();
        if (first.empty()) first = bits;
        EXPECT_EQ(bits, first);
      });
    }
}

TEST(AttentionBackward, SameBitsAloneAndInABatch) {
  std::mt19937 random(6);
  const Shape shape{3, 2, 150, 20};
  StridedTensor q(DType::f32, shape), k(DType::f32, shape), v(DType::f32, shape),
      d_o(DType::f32, shape);
  for (StridedTensor* x : {&q, &k, &v, &d_o}) x->fill_normal(random);
  AttentionOptions options;
  options.causal = CausalAlign::top_left;
  const BackwardRun batch(q, k, v, options, d_o);
  const auto part = [](const StridedTensor& x) {
    ConstTensorView view = x.view();
    view.data = static_cast<const float*>(view.data) + view.strides[0];
    view.shape[0] = 1;
    return view;
  };
  const BackwardRun alone(part(q), part(k), part(v), options, part(d_o));
  test::for_each_index(alone.dq.shape(), [&](const Shape& at) {
    Shape in_batch(at);
    in_batch[0] = 1;
    ASSERT_EQ(alone.dq(at), batch.dq(in_batch));
    ASSERT_EQ(alone.dk(at), batch.dk(in_batch));
    ASSERT_EQ(alone.dv(at), batch.dv(in_batch));
  });
}

// Whatever lies in hidden keys, and in queries that see no key, is absent.
TEST(AttentionBackward, NaNInHiddenPlacesReachesNoGradient) {
  for (const double special : {test::kNaN, test::kInfinity}) {
    std::mt19937 random(7);
    const Shape shape{1, 2, 70, 20};
    StridedTensor q(DType::f32, shape), k(DType::f32, shape), v(DType::f32, shape),
        d_o(DType::f32, shape), keep(DType::boolean, {70, 70});
    for (StridedTensor* x : {&q, &k, &v, &d_o}) x->fill_normal(random);
    keep.fill([](const Shape& at) { return at[0] != 3 && at[1] != 69 && at[1] != 5; });
    AttentionOptions options;
    options.mask = Mask::keep(keep);
    const test::ReferenceGradients expected = test::reference_gradients(q, k, v, options, d_o);
    for (std::size_t h = 0; h < 2; ++h)
      for (std::size_t i = 0; i < 20; ++i) {
        for (const std::size_t j : {69, 5}) {
          k.set({0, h, j, i}, special);
          v.set({0, h, j, i}, special);
        }
        q.set({0, h, 3, i}, special);
        d_o.set({0, h, 3, i}, special);
      }
    const BackwardRun run(q, k, v, options, d_o);
    run.expect(expected);
    EXPECT_EQ(run.dq({0, 0, 3, 0}), 0.0);
    EXPECT_EQ(run.dk({0, 1, 5, 0}), 0.0);
    EXPECT_EQ(run.dv({0, 1, 69, 1}), 0.0);
  }
}

TEST(AttentionBackward, NaNThatIsSeenReachesWhatSeesIt) {
  std::mt19937 random(8);
  const Shape shape{1, 1, 20, 8};
  StridedTensor q(DType::f32, shape), k(DType::f32, shape), v(DType::f32, shape),
      d_o(DType::f32, shape);
  for (StridedTensor* x : {&q, &k, &v, &d_o}) x->fill_normal(random);
  k.set({0, 0, 10, 2}, test::kNaN);
  AttentionOptions options;
  options.causal = CausalAlign::top_left;
  const BackwardRun run(q, k, v, options, d_o);
  EXPECT_TRUE(std::isfinite(run.dq({0, 0, 9, 0})));
  EXPECT_TRUE(std::isnan(run.dq({0, 0, 10, 0})));
  EXPECT_TRUE(std::isnan(run.dv({0, 0, 0, 0})));  // from the queries past 10
}

// Rows of a float mask that are one huge finite value: P is 1 / T_k, not 1.
TEST(AttentionBackward, RowsOfHugeFiniteBias) {
  for (const double value : {-1e9, -3.4e38}) {
    std::mt19937 random(9);
    const Shape shape{1, 1, 33, 16};
    StridedTensor q(DType::f32, shape), k(DType::f32, shape), v(DType::f32, shape),
        d_o(DType::f32, shape), bias(DType::f32, {33, 33});
    for (StridedTensor* x : {&q, &k, &v, &d_o}) x->fill_normal(random);
    bias.fill([&](const Shape& at) { return at[0] == 4 ? value : 0.0; });
    AttentionOptions options;
    options.mask = Mask::bias(bias);
    options.scale = 0.0;  // the scores beside it drown in f32, and are none in double
    const BackwardRun run(q, k, v, options, d_o);
    test::ReferenceGradients expected = test::reference_gradients(q, k, v, options, d_o);
    expected.score_size = 1;  // they are exact
    run.expect(expected);
  }
}

TEST(AttentionBackward, WantedGradientsAloneHaveTheSameBits) {
  const RandomCall call(10, DType::f32, {300});
  const BackwardRun all = call.run();
  StridedTensor dq(DType::f32, call.q.shape()), dk(DType::f32, call.k.shape()),
      dv(DType::f32, call.v.shape());
  const AttentionState state{call.d_o, all.o, all.row_max, all.row_sum};
  const auto run = [&](const AttentionGradients& wanted) {
    scaled_dot_product_attention_backward(call.q, call.k, call.v, call.options, state, wanted);
  };
  run({dq.view(), {}, {}, {}, {}});
  run({{}, dk.view(), {}, {}, {}});
  run({{}, {}, dv.view(), {}, {}});
  run({});
  EXPECT_EQ(dq.bits(), all.dq.bits());
  EXPECT_EQ(dk.bits(), all.dk.bits());
  EXPECT_EQ(dv.bits(), all.dv.bits());
}

}  // namespace
}  // namespace headwise
