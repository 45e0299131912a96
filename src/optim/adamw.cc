#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "optim/optimizer.h"

namespace headwise {
namespace {

std::vector<std::string> names_of(const AdamWOptions& options) {
  std::vector<std::string> names{"exp_avg", "exp_avg_sq"};
  if (options.amsgrad) names.emplace_back("max_exp_avg_sq");
  return names;
}

struct Rule final : Optimizer::State {
  explicit Rule(const AdamWOptions& wanted)
      : State(wanted.learning_rate, names_of(wanted)), options(wanted) {}

  void update(const TrainedParameter& p, std::span<Tensor> tensors, double t) const override {
    if (p.value.dtype == DType::f64)
      run<double>(p, tensors, t);
    else
      run<float>(p, tensors, t);
  }

  template <typename T>
  void run(const TrainedParameter& p, std::span<Tensor> tensors, double t) const {
    const T keep = static_cast<T>(1.0 - learning_rate * options.weight_decay);
    const T beta2 = static_cast<T>(options.beta2);
    const T new1 = static_cast<T>(1.0 - options.beta1), new2 = static_cast<T>(1.0 - options.beta2);
    const T rate = static_cast<T>(learning_rate / (1.0 - std::pow(options.beta1, t)));
    const T root = static_cast<T>(std::sqrt(1.0 - std::pow(options.beta2, t)));
    const T eps = static_cast<T>(options.eps);
    T* const mean = tensors[0].data<T>();
    T* const square = tensors[1].data<T>();
    T* const most = options.amsgrad ? tensors[2].data<T>() : nullptr;
    optim::for_each_element(p, [=](auto value, auto gradient, std::size_t i) {
      const T g = static_cast<T>(gradient);
      mean[i] += new1 * (g - mean[i]);
      square[i] = beta2 * square[i] + new2 * g * g;
      if (most != nullptr) most[i] = std::max(most[i], square[i]);
      const T v = most != nullptr ? most[i] : square[i];
      return keep * value - rate * mean[i] / (std::sqrt(v) / root + eps);
    });
  }

  AdamWOptions options;
};

std::unique_ptr<Optimizer::State> checked_rule(const AdamWOptions& options) {
  optim::check_not_negative("learning_rate", options.learning_rate);
  optim::check_not_negative("eps", options.eps);
  optim::check_not_negative("weight_decay", options.weight_decay);
  const auto check_beta = [](const char* name, double beta) {
    if (!(beta >= 0 && beta < 1))
      core::throw_argument(name, std::to_string(beta), "at least 0 and below 1");
  };
  check_beta("beta1", options.beta1);
  check_beta("beta2", options.beta2);
  return std::make_unique<Rule>(options);
}

}  // namespace

AdamW::AdamW(const AdamWOptions& options) : Optimizer(checked_rule(options)) {}

}  // namespace headwise
