// AdamW against its formula in double, for every option.
#include <algorithm>
#include <cmath>
#include <string>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/io.h"
#include "headwise/multihead_attention.h"
#include "optim/steps.h"

namespace headwise {
namespace {

TEST(AdamW, StepsFollowTheFormula) {
  for (const double beta1 : {0.0, 0.9})
    for (const double beta2 : {0.5, 0.999})
      for (const double decay : {0.0, 0.1})
        for (const bool amsgrad : {false, true}) {
          const AdamWOptions options{.learning_rate = 0.05,
                                     .beta1 = beta1,
                                     .beta2 = beta2,
                                     .eps = 1e-6,
                                     .weight_decay = decay,
                                     .amsgrad = amsgrad};
          test::expect_steps(
              [&] { return Optimizer(AdamW(options)); },
              [&](double& value, double g, double t, std::vector<double>& state) {
                value -= 0.05 * decay * value;
                state[0] = beta1 * state[0] + (1 - beta1) * g;
                state[1] = beta2 * state[1] + (1 - beta2) * g * g;
                state[2] = std::max(state[2], state[1]);
                const double v = (amsgrad ? state[2] : state[1]) / (1 - std::pow(beta2, t));
                value -= 0.05 * state[0] / (1 - std::pow(beta1, t)) / (std::sqrt(v) + 1e-6);
              });
        }
}

// dL/d(output) of the mean square of output - target.
Tensor mean_square_gradient(const Tensor& output, const ConstTensorView& target) {
  Tensor d(output.dtype(), output.shape());
  const double n = static_cast<double>(output.size());
  for (std::size_t i = 0; i < output.size(); ++i)
    test::put(d.view(), i, 2 * (test::get(output, i) - test::get(target, i)) / n);
  return d;
}

// tests/fixtures/make_training.py has PyTorch's side.
TEST(AdamW, TwentyStepsOfTheModuleAreTorchs) {
  const TensorFile file =
      TensorFile::open(std::string(HEADWISE_FIXTURES) + "/training.safetensors");
  for (const DType dtype : {DType::f32, DType::f64}) {
    const std::string prefix = std::string(name_of(dtype)) + ".";
    Generator generator(5);
    MultiheadAttention module({.embed_dim = 12, .num_heads = 3, .dtype = dtype}, generator);
    const ConstTensorView x = file.view(prefix + "input"), target = file.view(prefix + "target");
    ForwardOptions options;
    options.is_causal = true;
    options.need_weights = false;
    AdamW optimizer({.learning_rate = 0.01});
    SavedForward saved;
    ParameterGradients gradients(module);
    for (int step = 0; step < 20; ++step) {
      gradients.zero();
      const ForwardResult result = module.forward(x, x, x, options, saved);
      const Tensor d_output = mean_square_gradient(result.output, target);
      module.backward(saved, {d_output.view()}, gradients);
      module.update([&](std::span<const NamedTensorView> values) {
        optimizer.step(trained(values, gradients.views()));
      });
    }
    for (const NamedView& p : module.parameters()) {
      const ConstTensorView expected = file.view(prefix + p.name);
      double scale = 0;
      for (std::size_t i = 0; i < element_count(p.view.shape); ++i)
        scale = std::max(scale, std::abs(test::get(expected, i)));
      for (std::size_t i = 0; i < element_count(p.view.shape); ++i) {
        // Softmax doesn't see the keys' bias: its gradient is rounding noise, which AdamW makes as
        // large as any other where it is not far below eps.
        if (dtype == DType::f32 && p.name == "in_proj_bias" && i / 12 == 1) continue;
        ASSERT_NEAR(test::get(p.view, i), test::get(expected, i), 1e-5 * scale)
            << p.name << " " << i << ", " << name_of(dtype);
      }
    }
  }
}

TEST(AdamW, RefusesWrongOptions) {
  EXPECT_THROW(AdamW({.learning_rate = -1}), ArgumentError);
  EXPECT_THROW(AdamW({.beta1 = 1.0}), ArgumentError);
  EXPECT_THROW(AdamW({.beta2 = -0.5}), ArgumentError);
  EXPECT_THROW(AdamW({.eps = -1e-8}), ArgumentError);
  EXPECT_THROW(AdamW({.weight_decay = std::nan("")}), ArgumentError);
}

}  // namespace
}  // namespace headwise
