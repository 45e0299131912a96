// A module with a call and a loss, and all of its gradients: what the tests of backward compare.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/convert.h"
#include "headwise/multihead_attention.h"
#include "support/module_case.h"
#include "support/tensors.h"

namespace headwise::test {

inline TensorView mutable_view(const ConstTensorView& view) {
  return {const_cast<void*>(view.data), view.dtype, view.shape, view.strides};
}

// A module, a call of it, and a loss: the sum of the outputs' products with fixed numbers.
struct Step {
  MultiheadAttention* module;
  ConstTensorView query, key, value;
  ForwardOptions options;
  Tensor d_output;
  std::optional<Tensor> d_weights;

  double loss() const {
    const ForwardResult r = module->forward(query, key, value, options);
    double sum = 0;
    for (std::size_t i = 0; i < d_output.size(); ++i)
      sum += get(d_output.view(), i) * get(r.output.view(), i);
    if (d_weights)
      for (std::size_t i = 0; i < d_weights->size(); ++i)
        sum += get(d_weights->view(), i) * get(r.weights->view(), i);
    return sum;
  }
};

inline Step step_of(MultiheadAttention& module, const ModuleCall& call) {
  Step step{&module, call.query(), call.key(), call.value(), call.options(), {}, {}};
  const ForwardResult r = call.run();
  step.d_output = gaussian(module.options().dtype, r.output.shape(), 91);
  if (r.weights) step.d_weights = gaussian(module.options().dtype, r.weights->shape(), 92);
  return step;
}

struct Gradient {
  std::string name;
  Tensor value;
};

inline Tensor like(const ConstTensorView& of) { return Tensor(of.dtype, of.shape); }

// All gradients of a step, parameters first.
inline std::vector<Gradient> gradients_of(const Step& step) {
  SavedForward saved;
  step.module->forward(step.query, step.key, step.value, step.options, saved);
  ParameterGradients parameters(*step.module);
  std::vector<Gradient> inputs;
  const auto add = [&inputs](const char* name, const ConstTensorView& of) {
    inputs.push_back({name, like(of)});
    return inputs.back().value.view();
  };
  InputGradients d_inputs{
      add("query", step.query), add("key", step.key), add("value", step.value), {}, {}};
  const auto biased = [](const std::optional<Mask>& mask) {
    return mask && mask->kind() == Mask::Kind::bias;
  };
  if (biased(step.options.attn_mask))
    d_inputs.attn_mask = add("attn_mask", step.options.attn_mask->view());
  if (biased(step.options.key_padding_mask))
    d_inputs.key_padding_mask = add("key_padding_mask", step.options.key_padding_mask->view());
  step.module->backward(
      saved, {step.d_output.view(), step.d_weights ? step.d_weights->view() : ConstTensorView()},
      parameters, d_inputs);
  std::vector<Gradient> all;
  for (const NamedTensorView& p : parameters.views())
    all.push_back({p.name, Tensor::copy_of(p.view)});
  std::move(inputs.begin(), inputs.end(), std::back_inserter(all));
  return all;
}

// dL/dx by a difference of fourth order, whose error is far below f64's noise of 1e-12.
inline double difference(const std::function<double(double)>& loss_at) {
  constexpr double h = 1.0 / 1024;
  return (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
}

inline double largest(const ConstTensorView& x) {
  double most = 0;
  for (std::size_t i = 0; i < element_count(x.shape); ++i)
    most = std::max(most, std::abs(get(x, i)));
  return most;
}

// The same numbers in f64.
class Wide {
 public:
  explicit Wide(const Step& of) : module_(options_of(*of.module)) {
    module_.load_state_dict(of.module->parameters());
    module_.train(of.module->training());
    step.module = &module_;
    step.query = keep(of.query);
    step.key = of.key.data == of.query.data ? step.query : keep(of.key);
    step.value = of.value.data == of.query.data ? step.query : keep(of.value);
    step.options = of.options;
    for (std::optional<Mask>* mask : {&step.options.attn_mask, &step.options.key_padding_mask})
      if (*mask && (*mask)->kind() == Mask::Kind::bias) *mask = Mask::bias(keep((*mask)->view()));
    step.d_output = core::converted(of.d_output, DType::f64);
    if (of.d_weights) step.d_weights = core::converted(*of.d_weights, DType::f64);
  }
  Step step;

 private:
  static MultiheadAttentionOptions options_of(const MultiheadAttention& module) {
    MultiheadAttentionOptions options = module.options();
    options.dtype = DType::f64;
    options.weight_dtype.reset();
    return options;
  }
  ConstTensorView keep(const ConstTensorView& x) {
    tensors_.push_back(core::converted(x, DType::f64));
    return tensors_.back();
  }
  MultiheadAttention module_;
  std::vector<Tensor> tensors_;
};

}  // namespace headwise::test
