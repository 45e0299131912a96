// The module's gradients: f64 against central differences of the forward call for every option,
// the other dtypes against f64; what is promised about bits, threads and absent keys.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/multihead_attention.h"
#include "support/isas.h"
#include "support/module_case.h"
#include "support/module_step.h"
#include "support/tensors.h"
#include "support/threads.h"

namespace headwise {
namespace {

using test::difference;
using test::Gradient;
using test::gradients_of;
using test::largest;
using test::like;
using test::ModuleCall;
using test::ModuleCase;
using test::mutable_view;
using test::random_case;
using test::Step;
using test::step_of;
using test::Wide;

void expect_central_differences(const Step& step) {
  const std::vector<Gradient> gradients = gradients_of(step);
  const bool self = step.key.data == step.query.data;
  for (const Gradient& g : gradients) {
    SCOPED_TRACE(g.name);
    const double scale = std::max(1.0, largest(g.value.view()));
    if (self && (g.name == "key" || g.name == "value")) continue;  // moved with query
    for (std::size_t i = 0; i < g.value.size(); i += 1 + g.value.size() / 20) {
      const auto moved = [&](const TensorView& x, double by) {
        const double before = test::get(x, i);
        test::put(x, i, before + by);
        const double loss = step.loss();
        test::put(x, i, before);
        return loss;
      };
      const double found = difference([&](double by) {
        if (g.name == "query") return moved(mutable_view(step.query), by);
        if (g.name == "key") return moved(mutable_view(step.key), by);
        if (g.name == "value") return moved(mutable_view(step.value), by);
        if (g.name == "attn_mask") return moved(mutable_view(step.options.attn_mask->view()), by);
        if (g.name == "key_padding_mask")
          return moved(mutable_view(step.options.key_padding_mask->view()), by);
        double before = 0;
        const auto change = [&](bool back) {
          step.module->update([&](std::span<const NamedTensorView> parameters) {
            for (const NamedTensorView& p : parameters) {
              if (p.name != g.name) continue;
              if (!back) before = test::get(p.view, i);
              test::put(p.view, i, back ? before : before + by);
            }
          });
        };
        change(false);
        const double loss = step.loss();
        change(true);
        return loss;
      });
      double expected = test::get(g.value.view(), i);
      if (self && g.name == "query")
        for (const Gradient& other : gradients)
          if (other.name == "key" || other.name == "value")
            expected += test::get(other.value.view(), i);
      ASSERT_NEAR(found, expected, 1e-9 * scale) << "element " << i;
    }
  }
}

TEST(ModuleBackward, EveryOptionAgreesWithCentralDifferences) {
  std::mt19937 engine(5);
  for (int o = 0; o < ModuleCase::n_options; ++o)
    for (int x = 0; x < ModuleCase::kValues[o]; ++x)
      for (int turn = 0; turn < 2; ++turn) {
        ModuleCase c = random_case(engine);
        c.value[o] = x;
        c.value[ModuleCase::dtype] = 1;  // f64
        SCOPED_TRACE(c.text());
        ModuleCall call(c, static_cast<unsigned>(engine() % 1000));
        expect_central_differences(step_of(call.module(), call));
        if (HasFatalFailure()) return;
      }
}

// Sums of some hundred terms in f32, and the rounding of a gradient that has the dtype of a 16-bit
// input.
void expect_near_f64(const Step& step) {
  const Wide wide(step);
  const std::vector<Gradient> found = gradients_of(step), expected = gradients_of(wide.step);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t n = 0; n < found.size(); ++n) {
    SCOPED_TRACE(found[n].name);
    const double scale = std::max(1.0, largest(expected[n].value));
    for (std::size_t i = 0; i < found[n].value.size(); ++i) {
      const double x = test::get(expected[n].value, i);
      ASSERT_NEAR(test::get(found[n].value, i), x,
                  2e-5 * scale + test::epsilon(found[n].value.dtype()) * std::abs(x))
          << "element " << i;
    }
  }
}

TEST(ModuleBackward, OtherDtypesAgreeWithF64) {
  std::mt19937 engine(6);
  for (int dtype : {0, 2, 3})
    for (int turn = 0; turn < 100; ++turn) {
      ModuleCase c = random_case(engine);
      c.value[ModuleCase::dtype] = dtype;
      SCOPED_TRACE(c.text());
      ModuleCall call(c, static_cast<unsigned>(turn));
      expect_near_f64(step_of(call.module(), call));
      if (HasFatalFailure()) return;
    }
}

std::string bytes_of(const std::vector<Gradient>& gradients) {
  std::string all;
  for (const Gradient& g : gradients)
    all.append(static_cast<const char*>(g.value.view().data),
               g.value.size() * size_of(g.value.dtype()));
  return all;
}

// Self-attention, large enough for several threads.
struct Large {
  explicit Large(DType dtype, std::size_t B = 3, std::size_t T = 130, std::size_t E = 96)
      : module({.embed_dim = E, .num_heads = 4, .batch_first = true, .dtype = dtype}),
        x(test::gaussian(dtype, {B, T, E}, 8)) {
    ForwardOptions options;
    options.is_causal = true;
    options.need_weights = false;
    step = {&module, x, x, x, options, test::gaussian(dtype, {B, T, E}, 9), {}};
  }
  MultiheadAttention module;
  Tensor x;
  Step step;
};

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

TEST(ModuleBackward, BitsDoNotDependOnThreadsOrInstructionSet) {
  for (DType dtype : kTypes) {
    SCOPED_TRACE(name_of(dtype));
    const Large large(dtype);
    const auto bits = [&](int n) {
      const test::ScopedThreads threads(n);
      return bytes_of(gradients_of(large.step));
    };
    std::string fma;
    for (const std::string& isa : available_isas()) {
      SCOPED_TRACE(isa);
      const test::ScopedIsa forced(isa);
      const std::string one = bits(1);
      EXPECT_TRUE(bits(2) == one);
      EXPECT_TRUE(bits(5) == one);
      if (size_of(dtype) == 2 || !test::has_fma(isa)) continue;
      if (fma.empty()) fma = one;
      EXPECT_TRUE(one == fma);
    }
  }
}

TEST(ModuleBackward, AgreesWithF64OnEveryInstructionSetAndPastEachBlock) {
  test::for_each_isa([] {
    for (const std::size_t T : {1, 257})
      for (const DType dtype : {DType::f32, DType::bf16})
        expect_near_f64(Large(dtype, 2, T, 76).step);
  });
}

// Rows 1 KiB and 4 KiB apart, which the products copy, and rows of 16-bit dtypes.
TEST(ModuleBackward, WideRowsAreNotMixedUp) {
  for (const DType dtype : {DType::f32, DType::bf16})
    expect_near_f64(Large(dtype, 1, 33, 1024).step);
}

TEST(ModuleBackward, AddsToParametersAndWritesInputs) {
  const Large large(DType::f32, 2, 5, 12);
  const Step& step = large.step;
  const std::vector<Gradient> once = gradients_of(step);
  SavedForward saved;
  step.module->forward(step.query, step.key, step.value, step.options, saved);
  ParameterGradients parameters(*step.module);
  Tensor d_query = like(step.query);
  for (int turn = 0; turn < 2; ++turn)
    step.module->backward(saved, {step.d_output.view()}, parameters,
                          {d_query.view(), {}, {}, {}, {}});
  const std::vector<NamedTensorView> twice = parameters.views();
  for (std::size_t n = 0; n < twice.size(); ++n)
    for (std::size_t i = 0; i < once[n].value.size(); ++i)
      EXPECT_EQ(test::get(twice[n].view, i), 2 * test::get(once[n].value, i)) << twice[n].name;
  EXPECT_EQ(std::memcmp(d_query.view().data, once[twice.size()].value.view().data,
                        d_query.size() * sizeof(float)),
            0);
  parameters.zero();
  EXPECT_EQ(largest(parameters.view("in_proj_weight")), 0);
}

TEST(ModuleBackward, SharedInputsGetTheSum) {
  for (const DType dtype : kTypes) {
    const Large large(dtype, 2, 5, 12);
    const Step& step = large.step;
    const std::vector<Gradient> apart = gradients_of(step);
    const std::size_t n = apart.size() - 3;
    SavedForward saved;
    step.module->forward(step.query, step.key, step.value, step.options, saved);
    ParameterGradients parameters(*step.module);
    Tensor d_x = like(step.query);
    step.module->backward(saved, {step.d_output.view()}, parameters,
                          {d_x.view(), d_x.view(), d_x.view(), {}, {}});
    for (std::size_t i = 0; i < d_x.size(); ++i) {
      double sum = 0;
      for (std::size_t part = 0; part < 3; ++part) sum += test::get(apart[n + part].value, i);
      ASSERT_NEAR(test::get(d_x, i), sum, 3 * test::epsilon(dtype) * (1 + std::abs(sum)));
    }
  }
}

TEST(ModuleBackward, FrozenParametersAreLeftAlone) {
  Large large(DType::f32, 2, 5, 12);
  const Step& step = large.step;
  const std::vector<Gradient> all = gradients_of(step);
  SavedForward saved;
  step.module->forward(step.query, step.key, step.value, step.options, saved);
  for (const NamedView& frozen : step.module->parameters()) {
    ParameterGradients parameters(*step.module);
    parameters.freeze(frozen.name);
    EXPECT_TRUE(parameters.frozen(frozen.name));
    step.module->backward(saved, {step.d_output.view()}, parameters);
    EXPECT_EQ(largest(parameters.view(frozen.name)), 0);
    const std::vector<NamedTensorView> views = parameters.views();
    EXPECT_EQ(views.size(), step.module->parameters().size() - 1);
    for (const NamedTensorView& p : views)
      for (const Gradient& g : all)
        if (g.name == p.name) {
          EXPECT_EQ(std::memcmp(p.view.data, g.value.view().data, g.value.size() * sizeof(float)),
                    0)
              << p.name;
        }
  }
}

TEST(ModuleBackward, AbsentKeysGiveNothing) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  MultiheadAttention module({.embed_dim = 8, .num_heads = 2, .batch_first = true});
  Tensor x = test::gaussian(DType::f32, {2, 5, 8}, 1), d = test::gaussian(DType::f32, {2, 5, 8}, 2);
  // The last two keys of batch 0 are hidden and NaN, all keys of batch 1 are hidden.
  const char hidden[] = {0, 0, 0, 1, 1, 1, 1, 1, 1, 1};
  ForwardOptions options;
  options.need_weights = false;
  options.key_padding_mask = Mask::ignore({hidden, DType::boolean, Shape{2, 5}});
  Tensor keys = Tensor::copy_of(x);
  std::fill_n(keys.data<float>() + 3 * 8, 16, kNan);
  SavedForward saved;
  module.forward(x, keys, keys, options, saved);
  Tensor dq = like(x), dk = like(x), dv = like(x);
  ParameterGradients parameters(module);
  parameters.freeze("in_proj_weight");  // the sum over rows has NaN * 0 in it, as torch's
  module.backward(saved, {d.view()}, parameters, {dq.view(), dk.view(), dv.view(), {}, {}});
  for (const Tensor* g : {&dq, &dk, &dv})
    for (float value : g->values<float>()) EXPECT_TRUE(std::isfinite(value));
  for (const Tensor* g : {&dk, &dv})
    for (std::size_t i = 3 * 8; i < 5 * 8; ++i) EXPECT_EQ(g->values<float>()[i], 0);
  for (const Tensor* g : {&dq, &dk, &dv})
    for (std::size_t i = 5 * 8; i < 10 * 8; ++i) EXPECT_EQ(g->values<float>()[i], 0);
}

TEST(ModuleBackward, EmptyCallsGiveZeros) {
  for (const Shape& shape : {Shape{0, 3, 8}, Shape{2, 0, 8}}) {
    MultiheadAttention module({.embed_dim = 8, .num_heads = 2, .batch_first = true});
    const Tensor x(DType::f32, shape);
    Tensor d_x(DType::f32, shape);
    SavedForward saved;
    module.forward(x, x, x, {}, saved);
    ParameterGradients parameters(module);
    module.backward(saved, {x.view()}, parameters, {d_x.view(), {}, {}, {}, {}});
    for (const NamedTensorView& p : parameters.views()) EXPECT_EQ(largest(p.view), 0) << p.name;
  }
}

TEST(ModuleBackward, SavedMemoryIsUsedAgain) {
  const Large large(DType::f32, 2, 33, 12);
  const Step& step = large.step;
  SavedForward saved;
  step.module->forward(step.query, step.key, step.value, step.options, saved);
  ParameterGradients first(*step.module), second(*step.module);
  step.module->backward(saved, {step.d_output.view()}, first);
  // A shorter call, and then the same again.
  const ConstTensorView part(step.query.data, DType::f32, {2, 3, 12});
  step.module->forward(part, part, part, step.options, saved);
  step.module->forward(step.query, step.key, step.value, step.options, saved);
  step.module->backward(saved, {step.d_output.view()}, second);
  const std::vector<NamedTensorView> a = first.views(), b = second.views();
  for (std::size_t n = 0; n < a.size(); ++n)
    EXPECT_EQ(
        std::memcmp(a[n].view.data, b[n].view.data, element_count(a[n].view.shape) * sizeof(float)),
        0);
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModuleBackward, WrongCallsSayWhatIsWrong) {
  Large large(DType::f32, 2, 5, 12), other(DType::f32, 2, 5, 12), wider(DType::f32, 2, 5, 24);
  MultiheadAttention& module = large.module;
  const Step& step = large.step;
  SavedForward saved, none, elsewhere;
  module.forward(step.query, step.key, step.value, step.options, saved);
  other.module.forward(step.query, step.key, step.value, step.options, elsewhere);
  ParameterGradients parameters(module), wide(wider.module);
  Tensor d_x = like(step.query), small(DType::f32, {2, 4, 12}), f64(DType::f64, {2, 5, 12});
  const ConstTensorView d = step.d_output.view();
  const auto message = [&](const SavedForward& s, const OutputGradients& out,
                           const InputGradients& in = {}) {
    return message_of([&] { module.backward(s, out, parameters, in); });
  };
  EXPECT_EQ(message(none, {d}),
            "saved: found nothing, expected what a forward call of this module left");
  EXPECT_EQ(
      message(elsewhere, {d}),
      "saved: found a call of another module, expected what a forward call of this module left");
  EXPECT_EQ(message(saved, {small.view()}),
            "d_output: found shape (2, 4, 12), expected (2, 5, 12)");
  EXPECT_EQ(message(saved, {f64.view()}), "d_output: found dtype f64, expected f32");
  EXPECT_EQ(message(saved, {d, small.view()}),
            "d_weights: found shape (2, 4, 12), expected none, as forward returned no weights");
  EXPECT_EQ(message(saved, {d}, {small.view(), {}, {}, {}, {}}),
            "d_query: found shape (2, 4, 12), expected (2, 5, 12)");
  EXPECT_EQ(message(saved, {d}, {{}, f64.view(), {}, {}, {}}),
            "d_key: found dtype f64, expected f32");
  EXPECT_EQ(
      message(saved, {d}, {{}, {}, {}, d_x.view(), {}}),
      "d_attn_mask: found shape (2, 5, 12), expected none, as forward had no Mask::bias there");
  EXPECT_NE(message(saved, {d}, {{}, {}, mutable_view(step.query), {}, {}}).find("d_value: "),
            std::string::npos);
  EXPECT_NE(message(saved, {d}, {mutable_view(d), {}, {}, {}, {}}).find("d_query: "),
            std::string::npos);
  EXPECT_NE(message_of([&] { module.backward(saved, {d}, wide); }).find("parameters: found"),
            std::string::npos);
  EXPECT_EQ(message_of([&] { parameters.freeze("bias"); }),
            "name: found \"bias\", expected one of in_proj_weight, in_proj_bias, out_proj.weight, "
            "out_proj.bias");
  EXPECT_EQ(largest(parameters.view("in_proj_weight")), 0);
  module.update([](std::span<const NamedTensorView>) {});
  EXPECT_EQ(message(saved, {d}),
            "saved: found a call from before parameters were changed, expected one with the "
            "parameters of now");
}

}  // namespace
}  // namespace headwise
