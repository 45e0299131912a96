// What MultiheadAttention::backward takes and gives: gradients of a loss L with respect to inputs
// and parameters, from those with respect to the outputs.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "headwise/export.h"
#include "headwise/tensor.h"

namespace headwise {

class MultiheadAttention;

// What a forward call keeps for backward: projected heads, the rows' softmax states, and views of
// query, key, value and masks, which have to stay as they are until then. Memory grows with
// T_q + T_k; it is kept for the next forward call of the same sizes.
class HEADWISE_API SavedForward {
 public:
  SavedForward();
  ~SavedForward();
  SavedForward(SavedForward&&) noexcept;
  SavedForward& operator=(SavedForward&&) noexcept;

  bool empty() const { return state_ == nullptr; }

  struct State;  // of the library

 private:
  friend class MultiheadAttention;
  std::unique_ptr<State> state_;
};

// dL/d(output) and dL/d(weights), in the shapes and dtype of ForwardResult and of any strides; data
// null: there is none.
struct OutputGradients {
  ConstTensorView output;
  ConstTensorView weights{};
};

// dL/d(input), in the shape and dtype of the input; data null: not wanted, and its work is left
// out. Written, not added to. Views on the same memory, as of self-attention, are given the sum.
struct InputGradients {
  TensorView query, key, value;
  TensorView attn_mask, key_padding_mask;  // of a Mask::bias
};

// dL/d(parameter) of every parameter of a module, under its name and in its shape; f64 for an f64
// module, f32 otherwise. backward adds to them, as training loops expect.
class HEADWISE_API ParameterGradients {
 public:
  explicit ParameterGradients(const MultiheadAttention& module);  // zeros
  ~ParameterGradients();
  ParameterGradients(ParameterGradients&&) noexcept;
  ParameterGradients& operator=(ParameterGradients&&) noexcept;

  // Those that are not frozen, in the order of the module's parameters.
  std::vector<NamedTensorView> views();
  TensorView view(const std::string& name);  // throws ArgumentError for one that is not there
  void zero();

  // backward leaves out the work of a frozen parameter's gradient.
  void freeze(const std::string& name, bool frozen = true);
  bool frozen(const std::string& name) const;

  struct State;  // of the library

 private:
  friend class MultiheadAttention;
  std::unique_ptr<State> state_;
};

}  // namespace headwise
