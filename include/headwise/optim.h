// What a training loop needs beside gradients: SGD and AdamW as torch.optim has them, and clipping
// by the norm of all gradients together.
//
// Values are f32, f64, bf16 or f16 and contiguous; gradients have the value's dtype, or f32 beside
// 16-bit values. State and arithmetic are f32 (f64 for f64); a 16-bit value is rounded once a step,
// so that steps below half a unit in its last place are lost. The same bits for any number of
// threads.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headwise/export.h"
#include "headwise/tensor.h"

namespace headwise {

struct TrainedParameter {
  std::string name;  // state is kept under it
  TensorView value;
  ConstTensorView gradient;  // data null: frozen, left as it is
};

// `values` with the gradient of the same name; one without is frozen.
HEADWISE_API std::vector<TrainedParameter> trained(std::span<const NamedTensorView> values,
                                                   std::span<const NamedTensorView> gradients);

class HEADWISE_API Optimizer {
 public:
  ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;

  // Throws ArgumentError or DTypeError naming the parameter, before anything is written.
  void step(std::span<const TrainedParameter> parameters);

  double learning_rate() const;
  void set_learning_rate(double learning_rate);

  // What is kept for each parameter that was ever stepped: NAME.step, the number of its steps, and
  // tensors of its shape. The views end with the next call.
  std::vector<NamedView> state() const;
  // Replaces all of it, all or nothing.
  void load_state(std::span<const NamedView> state);

  struct State;  // of the library

 protected:
  explicit Optimizer(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

struct SGDOptions {
  double learning_rate = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;  // added to the gradient, times the value
  bool nesterov = false;      // needs momentum, and no dampening
};

//   g = gradient + weight_decay * value
//   b = momentum * b + (1 - dampening) * g, or g in the first step
//   value -= learning_rate * (nesterov ? g + momentum * b : momentum ? b : g)
// (Sutskever et al. 2013, in torch.optim.SGD's form.) State: NAME.momentum_buffer with momentum.
class HEADWISE_API SGD : public Optimizer {
 public:
  explicit SGD(const SGDOptions& options);  // throws ArgumentError
};

struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  // of the value itself, times learning_rate
  bool amsgrad = false;
};

//   value -= learning_rate * weight_decay * value
//   m = beta1 * m + (1 - beta1) * g      v = beta2 * v + (1 - beta2) * g^2
//   value -= learning_rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)
// with the largest v so far when amsgrad. (Loshchilov & Hutter 2019, algorithm 2; Reddi et al.
// 2018.) State: NAME.exp_avg, NAME.exp_avg_sq, and NAME.max_exp_avg_sq with amsgrad.
class HEADWISE_API AdamW : public Optimizer {
 public:
  explicit AdamW(const AdamWOptions& options);  // throws ArgumentError
};

// Scales all gradients by max_norm / (norm + 1e-6) if that is below 1; norm, which is returned, is
// the Euclidean norm of all of them together, summed in f64. One that is not finite makes them NaN
// or 0, as in torch.nn.utils.clip_grad_norm_, or is an ArgumentError before anything is written.
HEADWISE_API double clip_gradient_norm(std::span<const NamedTensorView> gradients, double max_norm,
                                       bool error_if_nonfinite = false);

}  // namespace headwise
