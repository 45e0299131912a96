#include "attention/backward/gradients.h"

#include <algorithm>
#include <string>

#include "attention/overlap.h"
#include "core/check.h"

namespace headwise::attention {
namespace {

Input check_state_tensor(const char* name, const ConstTensorView& view, const Shape& shape,
                         const Axes& axes, const Problem& p) {
  core::check_shape(name, view.shape, shape);
  core::check_view(name, view);
  return {view.data, view.dtype, broadcast_layout(view.shape, view.strides, axes, p.o_shape)};
}

// A gradient that may be asked for, and what it is the gradient of.
struct Wanted {
  const char* name;
  const TensorView& view;
  const ConstTensorView* of;  // null: there is no such input
  Output& checked;
};

void check_mask_gradient(const char* name, const TensorView& view, const char* mask_name,
                         const std::optional<Mask>& mask) {
  if (view.data == nullptr) return;
  if (!mask)
    core::throw_argument(name, "a gradient is wanted, but no " + std::string(mask_name),
                         "a Mask::bias to be the gradient of");
  if (mask->kind() != Mask::Kind::bias)
    core::throw_argument(name, "the gradient of a boolean mask is wanted",
                         "a Mask::bias to be the gradient of");
}

void check_gradient(const Problem& p, const Wanted& wanted) {
  const TensorView& view = wanted.view;
  core::check_dtype(wanted.name, view.dtype, wanted.of->dtype);
  core::check_shape(wanted.name, view.shape, wanted.of->shape);
  check_writable(wanted.name, view);
  const bool empty = element_count(view.shape) == 0;
  wanted.checked = {empty ? nullptr : view.data, view.dtype,
                    broadcast_layout(view.shape, view.strides, kMatrixPerHead, p.o_shape)};
}

}  // namespace

BackwardInputs check_state(const Problem& p, const AttentionState& state) {
  core::check_dtype("d_o", state.d_o.dtype, p.dtype);
  core::check_dtype("o", state.o.dtype, p.dtype);
  core::check_dtype("row_max", state.row_max.dtype, p.row_dtype);
  core::check_dtype("row_sum", state.row_sum.dtype, p.row_dtype);
  const Shape rows(p.o_shape.begin(), p.o_shape.end() - 1);
  BackwardInputs in;
  in.d_o = check_state_tensor("d_o", state.d_o, p.o_shape, kMatrixPerHead, p);
  in.o = check_state_tensor("o", state.o, p.o_shape, kMatrixPerHead, p);
  in.row_max = check_state_tensor("row_max", state.row_max, rows, kRowsPerHead, p);
  in.row_sum = check_state_tensor("row_sum", state.row_sum, rows, kRowsPerHead, p);
  if (state.d_weights.data != nullptr) {
    core::check_dtype("d_weights", state.d_weights.dtype, p.dtype);
    Shape shape(rows);
    shape.push_back(p.T_k);
    in.d_weights = check_state_tensor("d_weights", state.d_weights, shape, kMatrixPerHead, p);
  }
  if (state.d_average_weights.data != nullptr) {
    core::check_dtype("d_average_weights", state.d_average_weights.dtype, p.dtype);
    Shape shape(p.o_shape.begin(), p.o_shape.end() - std::min<std::size_t>(p.o_shape.size(), 3));
    shape.push_back(p.T_q);
    shape.push_back(p.T_k);
    in.d_average_weights =
        check_state_tensor("d_average_weights", state.d_average_weights, shape, kMatrixPerBatch, p);
  }
  return in;
}

Gradients check_gradients(const Problem& p, const BackwardCall& call) {
  const auto& [q, k, v, options, state, wanted] = call;
  check_mask_gradient("d_mask", wanted.d_mask, "mask", options.mask);
  check_mask_gradient("d_second_mask", wanted.d_second_mask, "second_mask", options.second_mask);
  Gradients out;
  const Wanted all[] = {
      {"dq", wanted.dq, &q, out.dq},
      {"dk", wanted.dk, &k, out.dk},
      {"dv", wanted.dv, &v, out.dv},
      {"d_mask", wanted.d_mask, options.mask ? &options.mask->view() : nullptr, out.d_masks[0]},
      {"d_second_mask", wanted.d_second_mask,
       options.second_mask ? &options.second_mask->view() : nullptr, out.d_masks[1]},
  };
  for (const Wanted& one : all)
    if (one.view.data != nullptr) check_gradient(p, one);
  for (const Wanted& one : all) {
    if (one.view.data == nullptr) continue;
    const auto apart_from = [&](const char* other, const ConstTensorView& view) {
      check_apart(one.name, one.view, other, view);
    };
    apart_from("q", q);
    apart_from("k", k);
    apart_from("v", v);
    apart_from("d_o", state.d_o);
    apart_from("o", state.o);
    apart_from("row_max", state.row_max);
    apart_from("row_sum", state.row_sum);
    if (state.d_weights.data != nullptr) apart_from("d_weights", state.d_weights);
    if (state.d_average_weights.data != nullptr)
      apart_from("d_average_weights", state.d_average_weights);
    if (options.mask) apart_from("mask", options.mask->view());
    if (options.second_mask) apart_from("second_mask", options.second_mask->view());
    for (const Wanted* other = all; other != &one; ++other)
      if (other->view.data != nullptr) apart_from(other->name, other->view);
  }
  return out;
}

}  // namespace headwise::attention
