// scaled_dot_product_attention against the definition: options, shapes, strides, dtypes and
// instruction sets drawn at random, then each optional output.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention.h"
#include "support/attention_reference.h"
#include "support/isas.h"
#include "support/strided_tensor.h"
#include "support/weight_rounding.h"

namespace headwise {
namespace {

using test::for_each_index;
using test::Memory;
using test::StridedTensor;

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

// A call with its tensors, drawn from a seed.
class RandomCall {
  template <typename C>
  auto pick(const C& values) {
    const std::size_t n = std::size(values);
    return values[std::uniform_int_distribution<std::size_t>(0, n - 1)(random_)];
  }

 public:
  RandomCall(unsigned seed, DType dtype) : random_(seed), dtype_(dtype) {
    draw_inputs();
    draw_options();
    o = output(dtype, test::with(test::with(outer_, T_q_), d_v_));
  }

  StridedTensor q, k, v, o;
  AttentionOptions options;

  StridedTensor output(DType dtype, const Shape& shape) {
    return {dtype, shape, pick(test::kWritable)};
  }
  Shape outer() const { return outer_; }
  void check_output() const {
    test::expect_output(test::reference_call(q, k, v, options), o);
    EXPECT_TRUE(o.surroundings_untouched());
  }

 private:
  bool chance(double p) { return std::bernoulli_distribution(p)(random_); }
  Memory any_memory() { return chance(0.15) ? Memory::expanded : pick(test::kWritable); }

  void draw_inputs() {
    static constexpr std::size_t kLengths[] = {1, 2, 3, 7, 16, 17, 21, 33, 65};
    static constexpr std::size_t kWidths[] = {1, 2, 3, 8, 16, 17, 40, 64, 65};
    T_q_ = chance(0.03) ? 0 : pick(kLengths);
    T_k_ = chance(0.03) ? 0 : pick(kLengths);
    d_head_ = chance(0.03) ? 0 : pick(kWidths);
    d_v_ = chance(0.03) ? 0 : pick(kWidths);
    static constexpr std::size_t kRanks[] = {2, 3, 4, 4, 4, 5};
    const std::size_t rank = pick(kRanks);
    Shape q_outer, k_outer, v_outer;
    for (std::size_t n = 0; n + 3 < rank; ++n) {
      const std::size_t size = pick(std::vector<std::size_t>{1, 2, 3});
      outer_.push_back(size);
      q_outer.push_back(size);
      k_outer.push_back(chance(0.2) ? 1 : size);
      v_outer.push_back(chance(0.2) ? 1 : size);
    }
    if (rank > 2) {
      const std::size_t n_kv_heads = pick(std::vector<std::size_t>{1, 2, 3});
      const std::size_t n_heads = n_kv_heads * pick(std::vector<std::size_t>{1, 1, 2, 3});
      outer_.push_back(n_heads);
      q_outer.push_back(n_heads);
      k_outer.push_back(n_kv_heads);
      v_outer.push_back(chance(0.1) ? 1 : n_kv_heads);
    }
    q = input(q_outer, T_q_, d_head_);
    k = input(k_outer, T_k_, d_head_);
    v = input(v_outer, T_k_, d_v_);
  }

  StridedTensor input(const Shape& outer, std::size_t rows, std::size_t columns) {
    StridedTensor tensor(dtype_, test::with(test::with(outer, rows), columns), any_memory());
    tensor.fill_normal(random_);
    return tensor;
  }

  Mask draw_mask(StridedTensor& memory) {
    Shape shape;
    for (const std::size_t size : outer_) shape.push_back(chance(0.4) ? 1 : size);
    shape.push_back(chance(0.2) ? 1 : T_q_);
    shape.push_back(chance(0.2) ? 1 : T_k_ - options.n_always_visible);
    while (shape.size() > 2 && chance(0.3)) shape = Shape(shape.begin() + 1, shape.end());
    if (chance(0.6)) {
      memory = StridedTensor(DType::boolean, shape, any_memory());
      memory.fill_flags(random_, chance(0.2) ? 0.05 : 0.6);
      return chance(0.5) ? Mask::keep(memory) : Mask::ignore(memory);
    }
    const bool half = dtype_ == DType::bf16 || dtype_ == DType::f16;
    memory = StridedTensor(half && chance(0.5) ? DType::f32 : dtype_, shape, any_memory());
    memory.fill_normal(random_, 2.0);
    for_each_index(memory.shape(), [&](const Shape& index) {
      if (chance(0.2)) memory.set(index, -test::kInfinity);
    });
    return Mask::bias(memory);
  }

  void draw_options() {
    if (chance(0.3)) options.scale = pick(std::vector<double>{0.0, -0.5, 0.25, 1.0});
    if (chance(0.4))
      options.causal = chance(0.5) ? CausalAlign::top_left : CausalAlign::bottom_right;
    if (chance(0.2)) options.n_always_visible = std::min<std::size_t>(T_k_, 2);
    if (chance(0.5)) options.mask = draw_mask(mask_memory_[0]);
    if (chance(0.2)) options.second_mask = draw_mask(mask_memory_[1]);
    if (chance(0.2)) options.dropout_p = pick(std::vector<double>{0.1, 0.5, 1.0});
    options.dropout_seed = random_();
  }

  std::mt19937 random_;
  DType dtype_;
  Shape outer_;
  std::size_t T_q_ = 0, T_k_ = 0, d_head_ = 0, d_v_ = 0;
  StridedTensor mask_memory_[2];
};

TEST(Forward, RandomCallsFollowTheDefinition) {
  test::for_each_isa([] {
    for (const DType dtype : kDTypes)
      for (unsigned seed = 0; seed < 60; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed) + " " + std::string(name_of(dtype)));
        RandomCall call(seed, dtype);
        scaled_dot_product_attention(call.q, call.k, call.v, call.options, call.o.view());
        call.check_output();
        if (::testing::Test::HasFailure()) return;
      }
  });
}

// All extras at once, in any strides; o keeps its bits (need_weights changes nothing).
TEST(Forward, RandomExtrasFollowTheDefinition) {
  test::for_each_isa([] {
    for (const DType dtype : kDTypes)
      for (unsigned seed = 100; seed < 125; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed) + " " + std::string(name_of(dtype)));
        RandomCall call(seed, dtype);
        scaled_dot_product_attention(call.q, call.k, call.v, call.options, call.o.view());
        const auto alone = call.o.bits();

        const test::AttentionReference r =
            test::reference_call(call.q, call.k, call.v, call.options);
        const DType row_dtype = dtype == DType::f64 ? DType::f64 : DType::f32;
        StridedTensor m = call.output(row_dtype, r.rows_shape);
        StridedTensor l = call.output(row_dtype, r.rows_shape);
        StridedTensor lse = call.output(row_dtype, r.rows_shape);
        StridedTensor weights = call.output(dtype, test::with(r.rows_shape, r.T_k));
        Shape batch = call.outer();
        if (!batch.empty()) batch = Shape(batch.begin(), batch.end() - 1);
        StridedTensor average = call.output(dtype, test::with(test::with(batch, r.T_q), r.T_k));
        AttentionExtras extras;
        extras.row_max = m.view();
        extras.row_sum = l.view();
        extras.log_sum_exp = lse.view();
        extras.weights = weights.view();
        extras.average_weights = average.view();
        scaled_dot_product_attention(call.q, call.k, call.v, call.options, call.o.view(), extras);
        EXPECT_EQ(call.o.bits(), alone);

        const double eps = test::rounding(row_dtype);
        std::vector<double> mean(element_count(average.shape()), 0.0);
        double largest_score = 0.0;
        for (const double size : r.score_size) largest_score = std::max(largest_score, size);
        for_each_index(r.rows_shape, [&, row = std::size_t{0}](const Shape& at) mutable {
          const std::size_t head = row / r.T_q, t = row % r.T_q;
          ++row;
          const test::ReferenceResult& expected = r.heads[head];
          const double error = eps * (16 + 4 * r.score_size[head]);
          const double em = expected.m[t], el = expected.l[t];
          if (el == 0.0) {
            EXPECT_EQ(m(at), -test::kInfinity);
            EXPECT_EQ(l(at), 0.0);
            EXPECT_EQ(lse(at), -test::kInfinity);
          } else {
            EXPECT_NEAR(m(at), em, error);
            const double sum_error = error + test::sum_rounding(dtype);
            EXPECT_NEAR(l(at), el, sum_error * el);
            EXPECT_NEAR(lse(at), em + std::log(el), error + sum_error);
          }
          for (std::size_t j = 0; j < r.T_k; ++j) {
            const double p = expected.p[t * r.T_k + j];
            // Errors of a score and of the row's largest one don't average out as in o.
            ASSERT_TRUE(
                test::close(weights(test::with(at, j)), p, dtype, p, 2 * r.score_size[head]))
                << "weights" << to_string(test::with(at, j));
            mean[(head / r.n_heads * r.T_q + t) * r.T_k + j] += p / static_cast<double>(r.n_heads);
          }
        });
        for_each_index(average.shape(), [&, n = std::size_t{0}](const Shape& at) mutable {
          ASSERT_TRUE(test::close(average(at), mean[n], dtype, mean[n], 2 * largest_score))
              << "average_weights" << to_string(at);
          ++n;
        });
        for (const StridedTensor* tensor : {&call.o, &m, &l, &lse, &weights, &average})
          EXPECT_TRUE(tensor->surroundings_untouched());
        if (::testing::Test::HasFailure()) return;
      }
  });
}

// Sizes that the random calls leave out: wide heads, and keys past two leaves.
TEST(Forward, WideHeadsAndManyKeys) {
  struct Sizes {
    std::size_t T_q, T_k, d_head, d_v;
  };
  for (const Sizes& s : {Sizes{5, 9, 128, 200}, Sizes{3, 70, 257, 1}, Sizes{17, 5, 512, 512},
                         Sizes{2, 3, 1030, 600}, Sizes{9, 1300, 8, 5}, Sizes{70, 1025, 3, 2}})
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(std::to_string(s.d_head) + " " + std::string(name_of(dtype)));
      std::mt19937 random(6);
      const StridedTensor q = StridedTensor(dtype, {2, s.T_q, s.d_head}).fill_normal(random);
      const StridedTensor k = StridedTensor(dtype, {1, s.T_k, s.d_head}).fill_normal(random);
      const StridedTensor v = StridedTensor(dtype, {1, s.T_k, s.d_v}).fill_normal(random);
      const StridedTensor keep =
          StridedTensor(DType::boolean, {s.T_q, s.T_k}).fill_flags(random, 0.5);
      AttentionOptions options;
      options.mask = Mask::keep(keep);
      options.causal = CausalAlign::bottom_right;
      options.dropout_p = 0.2;
      for (const AttentionOptions& each : {AttentionOptions(), options}) {
        const auto reference = test::reference_call(q, k, v, each);
        test::for_each_isa(
            [&] { test::expect_output(reference, scaled_dot_product_attention(q, k, v, each)); });
      }
    }
}

TEST(Forward, ReturnsANewTensor) {
  std::mt19937 random(3);
  const StridedTensor q = StridedTensor(DType::f32, {2, 4, 3, 8}).fill_normal(random);
  const StridedTensor k = StridedTensor(DType::f32, {2, 2, 5, 8}).fill_normal(random);
  const StridedTensor v = StridedTensor(DType::f32, {2, 2, 5, 6}).fill_normal(random);
  EXPECT_EQ(attention_output_shape(q, k, v), (Shape{2, 4, 3, 6}));
  const Tensor o = scaled_dot_product_attention(q, k, v);
  test::expect_output(test::reference_call(q, k, v), o);
}

// NaN and infinity that a row sees come out in it, in o and in what describes the row; its
// neighbours keep their bits.
TEST(Forward, SpecialValuesStayInTheirRow) {
  constexpr std::size_t kT = 70, kD = 3, kRow = 35;
  test::for_each_isa([] {
    for (const DType dtype : kDTypes) {
      const DType rows = dtype == DType::f64 ? DType::f64 : DType::f32;
      const auto run = [&](double in_q, double in_bias, std::vector<std::vector<double>>& found) {
        std::mt19937 random(9);
        StridedTensor q(dtype, {kT, kD}), k(dtype, {kT, kD}), bias(dtype, {kT, kT});
        q.fill_normal(random);
        k.fill_normal(random);
        bias.fill([](const Shape&) { return 0.0; });
        if (in_q != 0) q.set({kRow, 1}, in_q);
        bias.set({kRow, 50}, in_bias);
        AttentionOptions options;
        options.mask = Mask::bias(bias);
        StridedTensor o(dtype, {kT, kD}), m(rows, {kT}), l(rows, {kT}), lse(rows, {kT}),
            weights(dtype, {kT, kT});
        scaled_dot_product_attention(
            q, k, k, options, o.view(),
            {m.view(), l.view(), lse.view(), weights.view(), TensorView()});
        found.assign(kT, {});
        for (std::size_t t = 0; t < kT; ++t) {
          found[t] = {m({t}), l({t}), lse({t})};
          for (std::size_t i = 0; i < kD; ++i) found[t].push_back(o({t, i}));
          for (std::size_t j = 0; j < kT; ++j) found[t].push_back(weights({t, j}));
        }
      };
      std::vector<std::vector<double>> clean, special;
      run(0, 0, clean);
      for (const auto& [in_q, in_bias] : {std::pair{test::kNaN, 0.0},
                                          {test::kInfinity, 0.0},
                                          {0.0, test::kNaN},
                                          {0.0, test::kInfinity}}) {
        run(in_q, in_bias, special);
        for (std::size_t t = 0; t < kT; ++t)
          if (t != kRow) {
            ASSERT_EQ(special[t], clean[t]) << "row " << t;
          }
        for (std::size_t n = 1; n < 3 + kD; ++n)  // l, log-sum-exp, o
          EXPECT_TRUE(std::isnan(special[kRow][n])) << name_of(dtype) << n;
        if (std::isnan(in_q) || std::isnan(in_bias)) {
          EXPECT_TRUE(std::isnan(special[kRow][0])) << name_of(dtype);
        }
      }
    }
  });
}

// A mean over no heads, and any other empty dim, is a tensor of the right shape and of zeros.
TEST(Forward, AverageOverNoHeadsIsZero) {
  const StridedTensor q(DType::f32, {2, 0, 3, 8}), k(DType::f32, {2, 0, 5, 8});
  StridedTensor o(DType::f32, {2, 0, 3, 8}), average(DType::f32, {2, 3, 5}, Memory::columns);
  AttentionExtras extras;
  extras.average_weights = average.view();
  scaled_dot_product_attention(q, k, k, {}, o.view(), extras);
  for_each_index(average.shape(), [&](const Shape& at) { EXPECT_EQ(average(at), 0.0); });
  EXPECT_TRUE(average.surroundings_untouched());
}

// Outputs without elements are never work, however many rows their other dims count.
TEST(Forward, EmptyOutputsCostNothing) {
  const std::size_t huge = std::size_t{1} << 60;
  float memory[2] = {};
  AttentionExtras extras;
  extras.average_weights = {memory, DType::f32, {huge, 0, 3}};
  const ConstTensorView q(nullptr, DType::f32, {huge, 0, 0, 2}), k(nullptr, DType::f32, {0, 3, 2});
  scaled_dot_product_attention(q, k, k, {}, {nullptr, DType::f32, {huge, 0, 0, 2}}, extras);

  const std::size_t many = std::size_t{1} << 56;
  const ConstTensorView rows(nullptr, DType::f32, {many, 0});
  extras = {};
  extras.weights = {memory, DType::f32, {many, 0}};
  scaled_dot_product_attention(rows, ConstTensorView(nullptr, DType::f32, {0, 0}),
                               ConstTensorView(nullptr, DType::f32, {0, 0}), {},
                               {nullptr, DType::f32, {many, 0}}, extras);
}

}  // namespace
}  // namespace headwise
