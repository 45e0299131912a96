#include "module/torch_rules.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "attention/kernel_choice.h"
#include "attention/overlap.h"
#include "core/check.h"
#include "core/checked.h"
#include "kernels/isa.h"

namespace headwise::module {
namespace {

std::string shape_text(const Shape& shape) { return "shape " + to_string(shape); }

// One input alone: dtype, rank, width.
void check_input(const NamedInput& input, DType dtype, std::size_t rank, std::size_t width,
                 const char* width_name) {
  core::check_dtype(input.name, input.view.dtype, dtype);
  core::check_view(input.name, input.view);
  if (input.view.rank() != rank)
    core::throw_argument(input.name, shape_text(input.view.shape),
                         std::to_string(rank) + " dims, as query has");
  if (input.view.shape.from_back(0) != width)
    core::throw_argument(input.name, shape_text(input.view.shape),
                         "a last dim of " + std::to_string(width) + " (" + width_name + ")");
}

// The rows of an input once they are projected: broadcast views have more than memory holds. An
// empty batch counts as one, so that no later size overflows beside its 0.
void check_projected(const NamedInput& input, std::size_t B, std::size_t T, std::size_t width) {
  constexpr std::uint64_t kAppended = 2, kPadding = 64;  // at most: steps, and elements of a row
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max());
  const auto steps = core::checked_add(T, kAppended);
  const auto rows = steps ? core::checked_mul(std::max<std::size_t>(B, 1), *steps) : std::nullopt;
  const auto elements = rows ? core::checked_mul(*rows, width + kPadding) : std::nullopt;
  const auto bytes = elements ? core::checked_mul(*elements, sizeof(double)) : std::nullopt;
  if (!bytes || *bytes > kMax)
    core::throw_argument(
        input.name, shape_text(input.view.shape),
        "rows whose projections to " + std::to_string(width) + " features fit the address space");
}

void check_inputs(const MultiheadAttentionOptions& module, const Sizes& sizes,
                  const NamedInput (&inputs)[3], Call& call) {
  const ConstTensorView& query = inputs[0].view;
  if (query.rank() != 2 && query.rank() != 3)
    core::throw_argument("query", shape_text(query.shape), "2 dims, or 3 with a batch");
  const std::size_t rank = query.rank();
  check_input(inputs[0], module.dtype, rank, sizes.embed_dim, "embed_dim");
  check_input(inputs[1], module.dtype, rank, sizes.kdim, "kdim");
  check_input(inputs[2], module.dtype, rank, sizes.vdim, "vdim");

  call.batched = rank == 3;
  call.query = rows_of(query, module.batch_first);
  call.key = rows_of(inputs[1].view, module.batch_first);
  call.value = rows_of(inputs[2].view, module.batch_first);
  const std::size_t batch_dim = call.query.batch_outer ? 0 : 1;
  call.B = call.query.view.shape[batch_dim];
  call.T_q = call.query.view.shape[1 - batch_dim];
  call.T_k = call.key.view.shape[1 - batch_dim];

  Shape expected = inputs[1].view.shape;
  if (call.batched && expected[batch_dim] != call.B) {
    expected[batch_dim] = call.B;
    core::throw_argument("key", shape_text(inputs[1].view.shape),
                         to_string(expected) + ", the batch of query " + to_string(query.shape));
  }
  expected[rank - 1] = sizes.vdim;
  core::check_shape("value", inputs[2].view.shape, expected, "as many rows as key");
  check_projected(inputs[0], call.B, call.T_q, std::max(sizes.q_width, sizes.embed_dim));
  check_projected(inputs[1], call.B, call.T_k, sizes.kv_width);
}

void check_mask_dtype(const char* name, const Mask& mask, DType dtype) {
  const DType found = mask.view().dtype;
  if (mask.kind() != Mask::Kind::bias) {
    if (found != DType::boolean)
      core::throw_dtype(name, found, "bool for Mask::keep and Mask::ignore");
    return;
  }
  const bool narrow = dtype == DType::bf16 || dtype == DType::f16;
  if (found != dtype && !(narrow && found == DType::f32))
    core::throw_dtype(name, found,
                      std::string(name_of(dtype)) + (narrow ? " or f32" : "") + " for Mask::bias");
}

Mask with_view(const Mask& mask, const ConstTensorView& view) {
  switch (mask.kind()) {
    case Mask::Kind::keep:
      return Mask::keep(view);
    case Mask::Kind::ignore:
      return Mask::ignore(view);
    default:
      return Mask::bias(view);
  }
}

// (T_q, T_k), (B * n_heads, T_q, T_k) or (B, 1 or n_heads, T_q, T_k), as [B, n_heads, T_q, T_k].
ConstTensorView attn_mask_view(const ConstTensorView& mask, const Call& call, std::size_t n_heads) {
  const std::size_t rank = mask.rank();
  const Shape two{call.T_q, call.T_k}, three{call.B * n_heads, call.T_q, call.T_k};
  const Shape four{call.B, n_heads, call.T_q, call.T_k}, shared{call.B, 1, call.T_q, call.T_k};
  if (mask.shape != two && mask.shape != three && mask.shape != four && mask.shape != shared) {
    core::throw_argument("attn_mask", shape_text(mask.shape),
                         to_string(two) + ", " + to_string(three) + ", " + to_string(shared) +
                             " or " + to_string(four));
  }
  ConstTensorView view = mask;
  if (rank != 3) return view;
  view.shape = four;
  view.strides = {static_cast<std::ptrdiff_t>(n_heads) * mask.strides[0], mask.strides[0],
                  mask.strides[1], mask.strides[2]};
  return view;
}

// (B, T_k), or (T_k) for unbatched input, as [B, 1, 1, T_k].
ConstTensorView padding_view(const ConstTensorView& mask, const Call& call) {
  const Shape expected = call.batched ? Shape{call.B, call.T_k} : Shape{call.T_k};
  core::check_shape("key_padding_mask", mask.shape, expected,
                    call.batched ? "batch and keys" : "keys");
  ConstTensorView view = mask;
  view.shape = {call.B, 1, 1, call.T_k};
  view.strides = {call.batched ? mask.strides[0] : 0, 0, 0, mask.strides[mask.rank() - 1]};
  return view;
}

bool hides(Mask::Kind kind, const ConstTensorView& mask, std::ptrdiff_t offset) {
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  const void* data = mask.data;
  switch (mask.dtype) {
    case DType::f64:
      return static_cast<const double*>(data)[offset] == kHidden;
    case DType::f32:
      return static_cast<const float*>(data)[offset] == kHidden;
    case DType::bf16:
      return static_cast<float>(static_cast<const bfloat16*>(data)[offset]) == kHidden;
    case DType::f16:
      return static_cast<float>(static_cast<const float16*>(data)[offset]) == kHidden;
    default:
      return (static_cast<const std::uint8_t*>(data)[offset] != 0) == (kind == Mask::Kind::ignore);
  }
}

// The hint says that the mask hides exactly the keys after the query.
void check_hint(Mask::Kind kind, const ConstTensorView& view, const Call& call) {
  const std::size_t rank = view.rank();
  const std::size_t B = rank == 4 ? view.shape[0] : 1, H = rank == 4 ? view.shape[1] : 1;
  const auto step = [&](std::size_t from_back, std::size_t i) {
    return from_back < rank ? static_cast<std::ptrdiff_t>(i) * view.strides.from_back(from_back)
                            : 0;
  };
  for (std::size_t b = 0; b < B; ++b)
    for (std::size_t h = 0; h < H; ++h)
      for (std::size_t t = 0; t < call.T_q; ++t)
        for (std::size_t j = 0; j < call.T_k; ++j) {
          const bool hidden = hides(kind, view, step(3, b) + step(2, h) + step(1, t) + step(0, j));
          if (hidden == (j > t)) continue;
          core::throw_argument("is_causal",
                               "true, but attn_mask " + std::string(hidden ? "hides" : "shows") +
                                   " key " + std::to_string(j) + " to query " + std::to_string(t),
                               "a mask that hides exactly the keys after each query");
        }
}

void set_masks(const MultiheadAttentionOptions& module, const Sizes& sizes,
               const ForwardOptions& options, Call& call) {
  if (options.attn_mask) {
    const Mask& mask = *options.attn_mask;
    check_mask_dtype("attn_mask", mask, module.dtype);
    core::check_view("attn_mask", mask.view());
    const ConstTensorView view = attn_mask_view(mask.view(), call, sizes.n_heads);
    if (options.is_causal && options.strict) check_hint(mask.kind(), view, call);
    call.attention.mask = with_view(mask, view);
  }
  if (options.key_padding_mask) {
    const Mask& mask = *options.key_padding_mask;
    check_mask_dtype("key_padding_mask", mask, module.dtype);
    core::check_view("key_padding_mask", mask.view());
    call.attention.second_mask = with_view(mask, padding_view(mask.view(), call));
  }
  if (options.is_causal && !options.attn_mask) call.attention.causal = CausalAlign::top_left;
  // torch adds attn_mask first; alone, the padding mask is the first.
  if (!call.attention.mask) std::swap(call.attention.mask, call.attention.second_mask);
}

}  // namespace

Rows rows_of(const ConstTensorView& view, bool batch_first) {
  Rows rows{view, batch_first};
  if (view.rank() == 2) {
    rows.view.shape = {1, view.shape[0], view.shape[1]};
    rows.view.strides = {0, view.strides[0], view.strides[1]};
    rows.batch_outer = true;
  }
  return rows;
}

void place_mask_gradients(const Sizes& sizes, const ForwardOptions& options, const Call& call,
                          const InputGradients& inputs, AttentionGradients& gradients) {
  const auto writable = [](const ConstTensorView& view) {
    return TensorView(const_cast<void*>(view.data), view.dtype, view.shape, view.strides);
  };
  if (inputs.attn_mask.data != nullptr)
    gradients.d_mask = writable(attn_mask_view(inputs.attn_mask, call, sizes.n_heads));
  if (inputs.key_padding_mask.data != nullptr)
    (options.attn_mask ? gradients.d_second_mask : gradients.d_mask) =
        writable(padding_view(inputs.key_padding_mask, call));
}

void check_outputs(const MultiheadAttentionOptions& module, const Call& call,
                   const NamedInput (&inputs)[3], const ForwardOptions& options,
                   const NamedOutput (&outputs)[2]) {
  core::check_dtype(outputs[0].name, outputs[0].view.dtype, module.dtype);
  core::check_shape(outputs[0].name, outputs[0].view.shape, call.output_shape);
  if (call.weights_shape) {
    core::check_dtype(outputs[1].name, outputs[1].view.dtype, module.dtype);
    core::check_shape(outputs[1].name, outputs[1].view.shape, *call.weights_shape);
  }
  const std::size_t n = call.weights_shape ? 2 : 1;
  for (std::size_t i = 0; i < n; ++i) {
    const auto& [name, view] = outputs[i];
    attention::check_writable(name, view);
    for (const NamedInput& input : inputs)
      attention::check_apart(name, view, input.name, input.view);
    if (options.attn_mask)
      attention::check_apart(name, view, "attn_mask", options.attn_mask->view());
    if (options.key_padding_mask)
      attention::check_apart(name, view, "key_padding_mask", options.key_padding_mask->view());
  }
  if (n == 2)
    attention::check_apart(outputs[1].name, outputs[1].view, outputs[0].name, outputs[0].view);
}

bool per_head_weights(const Call& call) {
  return call.weights_shape && call.weights_shape->size() == (call.batched ? 4u : 3u);
}

TensorView with_batch(const Call& call, const TensorView& weights) {
  if (call.batched || weights.data == nullptr) return weights;
  TensorView view(weights.data, weights.dtype, {1}, {0});
  for (std::size_t n = 0; n < weights.rank(); ++n) {
    view.shape.push_back(weights.shape[n]);
    view.strides.push_back(weights.strides[n]);
  }
  return view;
}

ConstTensorView with_batch(const Call& call, const ConstTensorView& weights) {
  return with_batch(call, TensorView(const_cast<void*>(weights.data), weights.dtype, weights.shape,
                                     weights.strides));
}

Call check_call(const MultiheadAttentionOptions& module, const Sizes& sizes,
                const NamedInput (&inputs)[3], const ForwardOptions& options) {
  kernels::require_valid_isa();
  attention::require_valid_kernel();
  Call call;
  check_inputs(module, sizes, inputs, call);
  call.n_appended = (module.add_bias_kv ? 1u : 0u) + (module.add_zero_attn ? 1u : 0u);
  call.attention.n_always_visible = call.n_appended;
  set_masks(module, sizes, options, call);

  call.output_shape = inputs[0].view.shape;
  if (options.need_weights) {
    Shape& shape = call.weights_shape.emplace();
    if (call.batched) shape.push_back(call.B);
    if (!options.average_attn_weights) shape.push_back(sizes.n_heads);
    shape.push_back(call.T_q);
    shape.push_back(call.T_k + call.n_appended);
  }
  return call;
}

}  // namespace headwise::module
