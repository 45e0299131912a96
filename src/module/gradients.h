// The gradients of a module's parameters, and the sums over time steps that make them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "headwise/module_gradients.h"
#include "module/parameters.h"

namespace headwise {

struct ParameterGradients::State {
  State(const MultiheadAttentionOptions& options, const module::Sizes& sizes);

  std::size_t index_of(const std::string& name) const;  // throws ArgumentError
  TensorView wanted(const std::string& name) const;     // no data: frozen, or not there
  // Of the projections to q, k, v and of the output (0, 1, 2, 3).
  struct Projection {
    TensorView weight, bias;
  };
  Projection projection(std::size_t i) const;
  // Throws ArgumentError unless these are gradients of such parameters.
  void check_same(const module::Parameters& parameters) const;

  module::Parameters values;
  std::vector<char> is_frozen;
};

namespace module {

// For y = x W^T + b over some rows: dW[n, i] += sum over rows r of dy[r, n] x[r, i], db[n] += sum
// of dy[r, n]. Each sum is one chain in ascending r that starts at 0. No data: not wanted.
struct WeightGradient {
  ConstTensorView dy;  // [rows, N]
  ConstTensorView x;   // [rows, K]
  ParameterGradients::State::Projection to;
};
void add_weight_gradients(std::span<const WeightGradient> gradients);

// to += x, both [rows, n] of one dtype, f32 or f64, and contiguous in n.
void add_to(const ConstTensorView& x, const TensorView& to);
// to[n] += sum over rows of x[r, n]; `to` is f32 or f64.
void add_column_sums(const ConstTensorView& x, const TensorView& to);

}  // namespace module
}  // namespace headwise
