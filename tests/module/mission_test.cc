// The mission's statements about the module, one test each.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/multihead_attention.h"
#include "support/tensors.h"

namespace headwise {
namespace {

using Names = MultiheadAttentionOptions::Names;

using Matrix = std::vector<std::vector<double>>;

Matrix rows_of(const ConstTensorView& t, std::size_t first, std::size_t n) {
  Matrix m;
  const std::size_t width = t.shape.from_back(0);
  for (std::size_t r = first; r < first + n; ++r) {
    m.emplace_back();
    for (std::size_t c = 0; c < width; ++c) m.back().push_back(test::get(t, r * width + c));
  }
  return m;
}

Matrix times_transposed(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b.size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < b.size(); ++j)
      for (std::size_t k = 0; k < a[i].size(); ++k) c[i][j] += a[i][k] * b[j][k];
  return c;
}

Matrix columns_of(const Matrix& a, std::size_t first, std::size_t n) {
  Matrix c;
  for (const auto& row : a)
    c.emplace_back(row.begin() + static_cast<std::ptrdiff_t>(first),
                   row.begin() + static_cast<std::ptrdiff_t>(first + n));
  return c;
}

std::uint64_t count(const MultiheadAttention& m) { return m.parameter_count(); }

TEST(Mission, M3_EachHeadHasItsOwnProjectionsAndOneOutput) {
  Generator generator(0);
  MultiheadAttention module({.embed_dim = 12, .num_heads = 3, .bias = false, .batch_first = true},
                            generator);
  module.eval();
  const Tensor x = test::gaussian(DType::f32, {1, 5, 12}, 1);
  const ForwardResult all = module.forward(x, x, x);
  // Sum over heads of attention with that head's rows, times its columns of W^O.
  const ConstTensorView in = module.parameters()[0].view, out = module.parameters()[1].view;
  const Matrix rows = rows_of(x.view(), 0, 5), w_out = rows_of(out, 0, 12);
  Matrix sum(5, std::vector<double>(12));
  for (std::size_t h = 0; h < 3; ++h) {
    const Matrix q = times_transposed(rows, rows_of(in, h * 4, 4));
    const Matrix k = times_transposed(rows, rows_of(in, 12 + h * 4, 4));
    const Matrix v = times_transposed(rows, rows_of(in, 24 + h * 4, 4));
    const Matrix s = times_transposed(q, k), w = columns_of(w_out, h * 4, 4);
    for (std::size_t t = 0; t < 5; ++t) {
      double total = 0;
      std::vector<double> o(4);
      for (std::size_t j = 0; j < 5; ++j) total += std::exp(s[t][j] / 2);
      for (std::size_t j = 0; j < 5; ++j)
        for (std::size_t i = 0; i < 4; ++i) o[i] += std::exp(s[t][j] / 2) / total * v[j][i];
      for (std::size_t e = 0; e < 12; ++e)
        for (std::size_t i = 0; i < 4; ++i) sum[t][e] += o[i] * w[e][i];
    }
  }
  for (std::size_t i = 0; i < 60; ++i)
    EXPECT_NEAR(test::get(all.output.view(), i), sum[i / 12][i % 12], 1e-6);
}

TEST(Mission, M4_FourTimesTheSquareOfTheWidthForAnyNumberOfHeads) {
  for (std::size_t h : {1u, 2u, 8u, 64u})
    EXPECT_EQ(count(MultiheadAttention({.embed_dim = 512, .num_heads = h, .bias = false})),
              4u * 512 * 512);
  EXPECT_EQ(count(MultiheadAttention({.embed_dim = 512, .num_heads = 8})),
            4u * 512 * 512 + 4 * 512);
}

TEST(Mission, M5_TheBiasFreeModuleWithOneTable) {
  Generator generator(0);
  MultiheadAttention module({.embed_dim = 64, .num_heads = 8, .bias = false, .names = Names::fused},
                            generator);
  const auto parameters = module.parameters();
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0].name, "qkv_proj.weight");
  EXPECT_EQ(parameters[0].view.shape, (Shape{192, 64}));
  EXPECT_EQ(parameters[1].name, "out_proj.weight");
  EXPECT_EQ(parameters[1].view.shape, (Shape{64, 64}));
  EXPECT_EQ(module.parameter_count(), 4u * 64 * 64);
  // Another one takes its tables under those names and computes the same.
  MultiheadAttention other({.embed_dim = 64, .num_heads = 8, .names = Names::fused});
  other.load_state_dict(parameters);
  module.eval();
  other.eval();
  const Tensor x = test::gaussian(DType::f32, {4, 2, 64}, 1);
  const ForwardResult a = module.forward(x, x, x), b = other.forward(x, x, x);
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_EQ(test::get(a.output.view(), i), test::get(b.output.view(), i));
}

TEST(Mission, M6_OneMeansKeepDropoutOnWeightsAndCrossAttention) {
  MultiheadAttention module({.embed_dim = 8, .num_heads = 2, .dropout = 0.5, .batch_first = true});
  const std::size_t B = 2, T_q = 3, T_k = 4;
  const Tensor q = test::gaussian(DType::f32, {B, T_q, 8}, 1);
  const Tensor k = test::gaussian(DType::f32, {B, T_k, 8}, 2);
  const Tensor v = test::gaussian(DType::f32, {B, T_k, 8}, 3);
  std::vector<std::uint8_t> keep;
  for (std::size_t i = 0; i < B * T_q * T_k; ++i) keep.push_back(i % 4 != 2 && i % 5 != 0);
  const ConstTensorView view(keep.data(), DType::boolean, {B, 1, T_q, T_k});
  ForwardOptions options{.attn_mask = Mask::keep(view), .average_attn_weights = false};
  for (bool training : {false, true}) {
    module.train(training);
    const ForwardResult r = module.forward(q, k, v, options);
    std::size_t dropped = 0;
    for (std::size_t i = 0; i < r.weights->size(); ++i) {
      const std::size_t b = i / (2 * T_q * T_k);
      const double w = test::get(r.weights->view(), i);
      if (keep[b * T_q * T_k + i % (T_q * T_k)] == 0)
        EXPECT_EQ(w, 0.0);
      else
        dropped += w == 0.0;
    }
    EXPECT_EQ(dropped > 0, training) << "dropout acts on the weights, in training only";
  }
}

TEST(Mission, M7_OutputAndWeightsOfEveryHead) {
  MultiheadAttention module({.embed_dim = 512, .num_heads = 8, .batch_first = true});
  module.eval();
  const Tensor x = test::gaussian(DType::f32, {2, 16, 512}, 1);
  const ForwardResult r = module.forward(x, x, x, {.average_attn_weights = false});
  EXPECT_EQ(r.output.shape(), (Shape{2, 16, 512}));
  EXPECT_EQ(r.weights->shape(), (Shape{2, 8, 16, 16}));
  for (std::size_t row = 0; row < 2 * 8 * 16; ++row) {
    double sum = 0;
    for (std::size_t j = 0; j < 16; ++j) sum += test::get(r.weights->view(), row * 16 + j);
    EXPECT_NEAR(sum, 1.0, 1e-6);
  }
}

TEST(Mission, M8_HeadsThatDoNotDivideTheWidthAreAnError) {
  try {
    MultiheadAttention({.embed_dim = 10, .num_heads = 4});
    ADD_FAILURE();
  } catch (const ArgumentError& e) {
    EXPECT_EQ(e.argument(), "embed_dim");
    EXPECT_STREQ(e.what(),
                 "embed_dim: found 10, which num_heads 4 does not divide, expected a multiple of "
                 "num_heads, or head_dim given");
  }
}

TEST(Mission, M9_TorchsModule) {
  manual_seed(0);
  MultiheadAttention module({.embed_dim = 8, .num_heads = 2});
  std::string names;
  for (const NamedView& p : module.parameters()) names += p.name + to_string(p.view.shape) + " ";
  EXPECT_EQ(names,
            "in_proj_weight(24, 8) in_proj_bias(24,) out_proj.weight(8, 8) out_proj.bias(8,) ");
  EXPECT_FALSE(module.options().batch_first) << "sequence first by default";

  module.eval();
  const Tensor x = test::gaussian(DType::f32, {4, 2, 8}, 1);  // T, B, E
  const ForwardResult r = module.forward(x, x, x);
  EXPECT_EQ(r.output.shape(), (Shape{4, 2, 8}));
  EXPECT_EQ(r.weights->shape(), (Shape{2, 4, 4})) << "averaged over heads by default";

  // The same values with batch_first.
  MultiheadAttention batch_first({.embed_dim = 8, .num_heads = 2, .batch_first = true});
  batch_first.load_state_dict(module.parameters());
  batch_first.eval();
  const ConstTensorView turned(x.view().data, DType::f32, {2, 4, 8}, {8, 16, 1});
  const ForwardResult s = batch_first.forward(turned, turned, turned);
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t t = 0; t < 4; ++t)
      for (std::size_t e = 0; e < 8; ++e)
        EXPECT_EQ(test::get(s.output.view(), (b * 4 + t) * 8 + e),
                  test::get(r.output.view(), (t * 2 + b) * 8 + e));
}

TEST(Mission, M10_SlicingThePackedTableByHandGivesTheModulesOutput) {
  manual_seed(0);
  MultiheadAttention module({.embed_dim = 8, .num_heads = 2, .batch_first = true});
  module.eval();
  // The first numbers that torch prints for this seed.
  EXPECT_FLOAT_EQ(static_cast<float>(test::get(module.parameters()[0].view, 0)), 0.170178279f);
  const Tensor x = randn({2, 4, 8});
  EXPECT_FLOAT_EQ(x.data<float>()[0], 1.49027479f);

  const ForwardResult r = module.forward(x, x, x, {.average_attn_weights = false});
  const auto p = module.parameters();
  const Matrix w_out = rows_of(p[2].view, 0, 8);
  double largest = 0;
  for (std::size_t b = 0; b < 2; ++b) {
    const Matrix rows = rows_of(x.view(), b * 4, 4);
    const Matrix q = times_transposed(rows, rows_of(p[0].view, 0, 8));
    const Matrix k = times_transposed(rows, rows_of(p[0].view, 8, 8));
    const Matrix v = times_transposed(rows, rows_of(p[0].view, 16, 8));
    Matrix heads(4, std::vector<double>(8));
    for (std::size_t h = 0; h < 2; ++h) {
      const Matrix s = times_transposed(columns_of(q, h * 4, 4), columns_of(k, h * 4, 4));
      for (std::size_t t = 0; t < 4; ++t) {
        double total = 0;
        for (std::size_t j = 0; j < 4; ++j) total += std::exp(s[t][j] / 2);
        for (std::size_t j = 0; j < 4; ++j) {
          const double weight = std::exp(s[t][j] / 2) / total;
          largest = std::max(largest, std::abs(weight - test::get(r.weights->view(),
                                                                  ((b * 2 + h) * 4 + t) * 4 + j)));
          for (std::size_t i = 0; i < 4; ++i) heads[t][h * 4 + i] += weight * v[j][h * 4 + i];
        }
      }
    }
    const Matrix y = times_transposed(heads, w_out);
    for (std::size_t t = 0; t < 4; ++t)
      for (std::size_t e = 0; e < 8; ++e)
        largest =
            std::max(largest, std::abs(y[t][e] - test::get(r.output.view(), (b * 4 + t) * 8 + e)));
  }
  EXPECT_LT(largest, 1e-6);
}

}  // namespace
}  // namespace headwise
