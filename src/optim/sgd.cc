#include "core/check.h"
#include "optim/optimizer.h"

namespace headwise {
namespace {

struct Rule final : Optimizer::State {
  explicit Rule(const SGDOptions& wanted)
      : State(wanted.learning_rate, wanted.momentum > 0
                                        ? std::vector<std::string>{"momentum_buffer"}
                                        : std::vector<std::string>{}),
        options(wanted) {}

  void update(const TrainedParameter& p, std::span<Tensor> tensors, double t) const override {
    if (p.value.dtype == DType::f64)
      run<double>(p, tensors, t);
    else
      run<float>(p, tensors, t);
  }

  template <typename T>
  void run(const TrainedParameter& p, std::span<Tensor> tensors, double t) const {
    const T rate = static_cast<T>(learning_rate), decay = static_cast<T>(options.weight_decay);
    if (tensors.empty()) {
      optim::for_each_element(p, [=](auto value, auto gradient, std::size_t) {
        return value - rate * (gradient + decay * value);
      });
      return;
    }
    // A first buffer is the gradient itself.
    const T keep = static_cast<T>(t == 1 ? 0.0 : options.momentum);
    const T add = static_cast<T>(t == 1 ? 1.0 : 1.0 - options.dampening);
    const T momentum = static_cast<T>(options.momentum);
    T* const buffer = tensors[0].data<T>();
    const bool nesterov = options.nesterov;
    optim::for_each_element(p, [=](auto value, auto gradient, std::size_t i) {
      const T g = static_cast<T>(gradient + decay * value);
      buffer[i] = keep * buffer[i] + add * g;
      return value - rate * (nesterov ? g + momentum * buffer[i] : buffer[i]);
    });
  }

  SGDOptions options;
};

std::unique_ptr<Optimizer::State> checked_rule(const SGDOptions& options) {
  optim::check_not_negative("learning_rate", options.learning_rate);
  optim::check_not_negative("momentum", options.momentum);
  optim::check_not_negative("weight_decay", options.weight_decay);
  if (options.nesterov && (!(options.momentum > 0) || options.dampening != 0))
    core::throw_argument("nesterov",
                         "true with momentum " + std::to_string(options.momentum) +
                             " and dampening " + std::to_string(options.dampening),
                         "momentum above 0 and no dampening");
  return std::make_unique<Rule>(options);
}

}  // namespace

SGD::SGD(const SGDOptions& options) : Optimizer(checked_rule(options)) {}

}  // namespace headwise
