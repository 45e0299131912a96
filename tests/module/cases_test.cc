// Cases from public reports that the module's forward call covers, each under its id.
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/multihead_attention.h"
#include "support/module_reference.h"
#include "support/tensors.h"

namespace headwise {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Fixture U: one head of width 1 whose outputs are the means of the visible inputs. Fixture L4:
// the same with a query of 1, so that keys ln(1..4) get weights 1:2:3:4.
MultiheadAttention one_wide(float q_weight) {
  MultiheadAttention m({.embed_dim = 1, .num_heads = 1, .batch_first = true});
  const float in[] = {q_weight, 1, 1}, out[] = {1};
  m.set_parameter("in_proj_weight", ConstTensorView(in, {3, 1}));
  m.set_parameter("out_proj.weight", ConstTensorView(out, {1, 1}));
  m.eval();
  return m;
}

std::vector<double> values(const Tensor& t) {
  std::vector<double> all;
  for (std::size_t i = 0; i < t.size(); ++i) all.push_back(test::get(t.view(), i));
  return all;
}

void expect_values(const Tensor& t, const std::vector<double>& expected) {
  const std::vector<double> found = values(t);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 2e-6 * (1 + std::abs(expected[i]))) << "element " << i;
}

// Runs with and without weights and expects the same output from both.
ForwardResult run_both(const MultiheadAttention& m, const ConstTensorView& x,
                       ForwardOptions options, const std::vector<double>& expected) {
  options.need_weights = false;
  const Tensor without = std::move(m.forward(x, x, x, options).output);
  options.need_weights = true;
  ForwardResult with = m.forward(x, x, x, options);
  expect_values(with.output, expected);
  EXPECT_EQ(values(without), values(with.output)) << "the output depends on need_weights";
  return with;
}

TEST(Cases, FM02) {
  const float x[] = {3, 6, 9, 12, 15, 18};
  const float mask[] = {0, kMinusInf, kMinusInf, 0, 0, kMinusInf, kMinusInf, 0, 0};
  const bool padding[] = {false, false, false, false, true, true};
  run_both(one_wide(0), ConstTensorView(x, {2, 3, 1}),
           {.key_padding_mask = Mask::ignore(ConstTensorView(padding, {2, 3})),
            .attn_mask = Mask::bias(ConstTensorView(mask, {3, 3}))},
           {3, 4.5, 7.5, 12, 12, 0});
}

TEST(Cases, FM05) {
  const float x[] = {3, 6, 9, 12, 15, 18};
  const bool padding[] = {false, false, false, true, true, true};
  const ForwardOptions options{.key_padding_mask = Mask::ignore(ConstTensorView(padding, {2, 3}))};
  MultiheadAttention m = one_wide(0);
  const ForwardResult r = run_both(m, ConstTensorView(x, {2, 3, 1}), options, {6, 6, 6, 0, 0, 0});
  for (std::size_t i = 9; i < 18; ++i) EXPECT_EQ(test::get(r.weights->view(), i), 0.0);
  const float bias[] = {-2};
  m.set_parameter("out_proj.bias", ConstTensorView(bias, {1}));
  run_both(m, ConstTensorView(x, {2, 3, 1}), options, {4, 4, 4, -2, -2, -2});
}

TEST(Cases, CA08) {
  const float x[] = {3, 6, 9};
  const bool padding[] = {true, false, false};
  run_both(one_wide(0), ConstTensorView(x, {1, 3, 1}),
           {.key_padding_mask = Mask::ignore(ConstTensorView(padding, {1, 3})), .is_causal = true},
           {0, 6, 7.5});
}

TEST(Cases, CA09) {
  const float x[] = {3, 6, 9};
  const bool nothing[9] = {};
  ForwardOptions options{.attn_mask = Mask::ignore(ConstTensorView(nothing, {3, 3})),
                         .is_causal = true};
  const MultiheadAttention m = one_wide(0);
  const ConstTensorView view(x, {1, 3, 1});
  run_both(m, view, options, {6, 6, 6});  // the mask is what counts
  options.strict = true;
  EXPECT_THROW(m.forward(view, view, view, options), ArgumentError);
}

TEST(Cases, CA11) {
  MultiheadAttention m({.embed_dim = 4, .num_heads = 2, .batch_first = true});
  m.eval();
  const Tensor q = test::gaussian(DType::f32, {1, 2, 4}, 1);
  const Tensor k = test::gaussian(DType::f32, {1, 5, 4}, 2);
  const bool mask[] = {false, false, false, false, true, false, false, false, false, false};
  for (bool need_weights : {false, true}) {
    ForwardOptions options{.attn_mask = Mask::ignore(ConstTensorView(mask, {2, 5})),
                           .need_weights = need_weights};
    const std::vector<double> plain = values(m.forward(q, k, k, options).output);
    options.is_causal = true;
    EXPECT_EQ(values(m.forward(q, k, k, options).output), plain);
    options.strict = true;
    EXPECT_THROW(m.forward(q, k, k, options), ArgumentError);
  }
}

TEST(Cases, MS01) {
  const float q[] = {1}, k[] = {0, std::log(2.0f), std::log(3.0f), std::log(4.0f)};
  const float v[] = {10, 20, 30, 40};
  const bool mask[] = {true, false, false, false};
  const MultiheadAttention m = one_wide(1);
  const auto run = [&](const ForwardOptions& options) {
    return values(m.forward(ConstTensorView(q, {1, 1, 1}), ConstTensorView(k, {1, 4, 1}),
                            ConstTensorView(v, {1, 4, 1}), options)
                      .output)[0];
  };
  const ConstTensorView view(mask, {1, 4});
  EXPECT_NEAR(run({}), 30, 1e-5);
  EXPECT_NEAR(run({.attn_mask = Mask::ignore(view)}), 290.0 / 9, 1e-5);
  EXPECT_NEAR(run({.key_padding_mask = Mask::ignore(view)}), 290.0 / 9, 1e-5);
  EXPECT_NEAR(run({.attn_mask = Mask::keep(view)}), 10, 1e-5);
}

TEST(Cases, MS04) {
  const float x[] = {3, 6, 9};
  const float padding_bias[] = {0, 0, kMinusInf};
  const bool padding[] = {false, false, true};
  const float causal_bias[] = {0, kMinusInf, kMinusInf, 0, 0, kMinusInf, 0, 0, 0};
  const bool causal[] = {false, true, true, false, false, true, false, false, false};
  const Mask masks[] = {Mask::bias(ConstTensorView(causal_bias, {3, 3})),
                        Mask::ignore(ConstTensorView(causal, {3, 3}))};
  const Mask paddings[] = {Mask::bias(ConstTensorView(padding_bias, {1, 3})),
                           Mask::ignore(ConstTensorView(padding, {1, 3}))};
  for (const Mask& mask : masks)
    for (const Mask& hidden : paddings)
      run_both(one_wide(0), ConstTensorView(x, {1, 3, 1}),
               {.key_padding_mask = hidden, .attn_mask = mask}, {3, 4.5, 4.5});
}

TEST(Cases, MS06) {
  const std::size_t B = 2, T = 8;
  MultiheadAttention m({.embed_dim = 4, .num_heads = 4, .batch_first = true});
  const Tensor x = test::gaussian(DType::f32, {B, T, 4}, 1);
  const Tensor bias = test::gaussian(DType::f32, {B * 4, T, T}, 2);
  std::vector<std::uint8_t> bits(B * 4 * T * T), hidden(B * T);
  for (std::size_t i = 0; i < bits.size(); ++i)
    bits[i] = test::get(bias.view(), i * 7 % bias.size()) > 0.4;
  hidden[3] = hidden[T + 6] = 1;
  const ConstTensorView bool_view(bits.data(), DType::boolean, {B * 4, T, T});
  const ConstTensorView hidden_view(hidden.data(), DType::boolean, {B, T});
  for (const Mask& mask : {Mask::bias(bias.view()), Mask::ignore(bool_view)})
    for (bool padded : {false, true})
      for (bool training : {false, true})
        for (bool need_weights : {false, true}) {
          ForwardOptions options{.attn_mask = mask, .need_weights = need_weights};
          if (padded) options.key_padding_mask = Mask::ignore(hidden_view);
          m.train(training);
          const test::ModuleResult expected = test::ModuleReference(m, options).forward(x, x, x);
          const std::vector<double> found = values(m.forward(x, x, x, options).output);
          for (std::size_t i = 0; i < found.size(); ++i)
            EXPECT_NEAR(found[i], expected.output[i], 1e-6);
        }
}

TEST(Cases, SH04) {
  MultiheadAttention m({.embed_dim = 4, .num_heads = 2, .kdim = 3, .vdim = 5, .batch_first = true});
  const Tensor q = test::gaussian(DType::f32, {2, 3, 4}, 1);
  const Tensor k = test::gaussian(DType::f32, {2, 6, 3}, 2);
  const Tensor v = test::gaussian(DType::f32, {2, 6, 5}, 3);
  const ForwardResult r = m.forward(q, k, v);
  EXPECT_EQ(r.output.shape(), (Shape{2, 3, 4}));
  EXPECT_EQ(r.weights->shape(), (Shape{2, 3, 6}));
}

TEST(Cases, SH05) {
  const auto names = [](const MultiheadAttention& m) {
    std::string all;
    for (const NamedView& p : m.parameters()) all += p.name + " ";
    return all;
  };
  MultiheadAttention separate({.embed_dim = 4, .num_heads = 2, .kdim = 3});
  EXPECT_EQ(
      names(separate),
      "q_proj_weight k_proj_weight v_proj_weight in_proj_bias out_proj.weight out_proj.bias ");
  const MultiheadAttention packed({.embed_dim = 4, .num_heads = 2, .kdim = 4, .vdim = 4});
  EXPECT_EQ(names(packed), "in_proj_weight in_proj_bias out_proj.weight out_proj.bias ");
  EXPECT_THROW(separate.load_state_dict(packed.parameters()), ArgumentError);
  // Packed rows are q, k, v: the block of q fits the separate table.
  ConstTensorView q_rows = packed.parameters()[0].view;
  q_rows.shape[0] = 4;
  separate.set_parameter("q_proj_weight", q_rows);
  for (std::size_t i = 0; i < 16; ++i)
    EXPECT_EQ(test::get(separate.parameters()[0].view, i), test::get(q_rows, i));
}

TEST(Cases, SH07) {
  MultiheadAttention m({.embed_dim = 4, .num_heads = 2});
  m.eval();
  const Tensor x = test::gaussian(DType::f32, {3, 4}, 1);
  const bool padding[] = {false, true, false};
  const bool two[] = {false, true, true, false, false, true, false, false, false};
  bool three[18] = {};
  three[4] = three[11] = true;
  ConstTensorView batch = x.view();
  batch.shape = {3, 1, 4};
  batch.strides = {4, 4, 1};
  for (const Mask& mask : {Mask::ignore(ConstTensorView(two, {3, 3})),
                           Mask::ignore(ConstTensorView(three, {2, 3, 3}))})
    for (bool average : {true, false}) {
      ForwardOptions options{.key_padding_mask = Mask::ignore(ConstTensorView(padding, {3})),
                             .attn_mask = mask,
                             .average_attn_weights = average};
      const ForwardResult alone = m.forward(x, x, x, options);
      EXPECT_EQ(alone.output.shape(), (Shape{3, 4}));
      EXPECT_EQ(alone.weights->shape(), average ? (Shape{3, 3}) : (Shape{2, 3, 3}));
      options.key_padding_mask = Mask::ignore(ConstTensorView(padding, {1, 3}));
      const ForwardResult batched = m.forward(batch, batch, batch, options);
      EXPECT_EQ(values(alone.output), values(batched.output));
      EXPECT_EQ(values(*alone.weights), values(*batched.weights));
    }
}

TEST(Cases, WD01) {
  MultiheadAttention m({.embed_dim = 8, .num_heads = 4, .dropout = 0.2});
  const Tensor q = test::gaussian(DType::f32, {50, 2, 8}, 1);
  const Tensor k = test::gaussian(DType::f32, {1, 2, 8}, 2);
  const ForwardOptions options{.average_attn_weights = false};
  const Tensor dropped = *m.forward(q, k, k, options).weights;
  std::size_t zeros = 0;
  for (double w : values(dropped)) {
    EXPECT_TRUE(w == 0.0 || w == 1.25) << w;
    zeros += w == 0.0;
  }
  EXPECT_NEAR(static_cast<double>(zeros) / 400, 0.2, 0.08);
  m.eval();
  for (double w : values(*m.forward(q, k, k, options).weights)) EXPECT_EQ(w, 1.0);
}

TEST(Cases, WD02) {
  Generator a(1), b(1);
  MultiheadAttention with({.embed_dim = 8, .num_heads = 2, .dropout = 0.5}, a);
  MultiheadAttention without({.embed_dim = 8, .num_heads = 2}, b);
  with.eval();
  const Tensor x = test::gaussian(DType::f32, {5, 2, 8}, 1);
  const std::vector<double> first = values(with.forward(x, x, x).output);
  EXPECT_EQ(first, values(with.forward(x, x, x, {.dropout_seed = 9}).output));
  EXPECT_EQ(first, values(without.forward(x, x, x).output));
}

TEST(Cases, WD05) {
  MultiheadAttention m({.embed_dim = 10, .num_heads = 2, .dropout = 0.3, .batch_first = true});
  const std::size_t B = 2, T = 3;
  for (bool batched : {true, false})
    for (bool training : {false, true}) {
      m.train(training);
      const Tensor x = test::gaussian(DType::f32, batched ? Shape{B, T, 10} : Shape{T, 10}, 1);
      const Tensor heads = *m.forward(x, x, x, {.average_attn_weights = false}).weights;
      const Tensor average = *m.forward(x, x, x).weights;
      EXPECT_EQ(heads.shape(), batched ? (Shape{B, 2, T, T}) : (Shape{2, T, T}));
      EXPECT_EQ(average.shape(), batched ? (Shape{B, T, T}) : (Shape{T, T}));
      for (std::size_t i = 0; i < average.size(); ++i) {
        const std::size_t at = i / (T * T) * 2 * T * T + i % (T * T);
        const double mean = (test::get(heads.view(), at) + test::get(heads.view(), at + T * T)) / 2;
        EXPECT_NEAR(test::get(average.view(), i), mean, 1e-7);
      }
    }
}

TEST(Cases, WD07) {
  const std::size_t E = 8, H = 4, d = 2, removed = 1;
  Generator generator(1);
  MultiheadAttention m({.embed_dim = E, .num_heads = H, .batch_first = true}, generator);
  MultiheadAttention pruned(
      {.embed_dim = E, .num_heads = H - 1, .batch_first = true, .head_dim = d});
  Tensor in = Tensor::copy_of(m.parameters()[0].view),
         out = Tensor::copy_of(m.parameters()[2].view);
  Tensor in_cut(DType::f32, {3 * (H - 1) * d, E}), out_cut(DType::f32, {E, (H - 1) * d});
  std::size_t kept_row = 0;
  for (std::size_t row = 0; row < 3 * E; ++row) {
    const bool gone = row % E / d == removed;
    for (std::size_t i = 0; i < E; ++i) {
      if (gone && row >= 2 * E) test::put(in.view(), row * E + i, 0);
      if (!gone) test::put(in_cut.view(), kept_row * E + i, test::get(in.view(), row * E + i));
    }
    kept_row += !gone;
  }
  for (std::size_t e = 0; e < E; ++e)
    for (std::size_t c = 0, kept = 0; c < E; ++c) {
      if (c / d == removed)
        test::put(out.view(), e * E + c, 0);
      else
        test::put(out_cut.view(), e * (H - 1) * d + kept++, test::get(out.view(), e * E + c));
    }
  m.set_parameter("in_proj_weight", in);
  m.set_parameter("out_proj.weight", out);
  pruned.set_parameter("in_proj_weight", in_cut);
  pruned.set_parameter("out_proj.weight", out_cut);
  const Tensor x = test::gaussian(DType::f32, {2, 5, E}, 2);
  expect_values(pruned.forward(x, x, x).output, values(m.forward(x, x, x).output));
}

std::size_t threads_of_process() {
  std::size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    static_cast<void>(entry);
    ++n;
  }
  return n;
}

TEST(Cases, DT03) {
  MultiheadAttention m({.embed_dim = 32, .num_heads = 4});
  m.eval();
  const Tensor x = test::gaussian(DType::f32, {33, 2, 32}, 1);
  const std::vector<double> expected = values(m.forward(x, x, x).output);
  const std::size_t before = threads_of_process();
  std::vector<int> wrong(8);
  std::vector<std::thread> callers;
  for (std::size_t n = 0; n < wrong.size(); ++n)
    callers.emplace_back([&, n] {
      for (int i = 0; i < 20; ++i) wrong[n] += values(m.forward(x, x, x).output) != expected;
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, std::vector<int>(8));
  EXPECT_LE(threads_of_process(), before + 1) << "workers stay behind";
}

}  // namespace
}  // namespace headwise
