// SGD against its formula in double, for every option.
#include "gtest/gtest.h"
#include "headwise/error.h"
#include "optim/steps.h"

namespace headwise {
namespace {

TEST(SGD, StepsFollowTheFormula) {
  for (const double momentum : {0.0, 0.9})
    for (const double dampening : {0.0, 0.3})
      for (const double decay : {0.0, 0.1})
        for (const bool nesterov : {false, true}) {
          if (nesterov && (momentum == 0 || dampening != 0)) continue;
          const SGDOptions options{.learning_rate = 0.05,
                                   .momentum = momentum,
                                   .dampening = dampening,
                                   .weight_decay = decay,
                                   .nesterov = nesterov};
          test::expect_steps([&] { return Optimizer(SGD(options)); },
                             [&](double& value, double g, double t, std::vector<double>& state) {
                               g += decay * value;
                               state[0] = t == 1 ? g : momentum * state[0] + (1 - dampening) * g;
                               const double step = momentum == 0 ? g : state[0];
                               value -= 0.05 * (nesterov ? g + momentum * state[0] : step);
                             });
        }
}

TEST(SGD, RefusesWrongOptions) {
  EXPECT_THROW(SGD({.learning_rate = -1}), ArgumentError);
  EXPECT_THROW(SGD({.learning_rate = std::nan("")}), ArgumentError);
  EXPECT_THROW(SGD({.momentum = -0.1}), ArgumentError);
  EXPECT_THROW(SGD({.weight_decay = -0.1}), ArgumentError);
  EXPECT_THROW(SGD({.nesterov = true}), ArgumentError);
  EXPECT_THROW(SGD({.momentum = 0.9, .dampening = 0.1, .nesterov = true}), ArgumentError);
}

}  // namespace
}  // namespace headwise
