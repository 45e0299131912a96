// The module's gradients, layer by layer from the output back:
//   dO = dY W^O      dW^O = dY^T O      db^O = sum of dY
//   dQ, dK, dV: attention's backward
//   dX = dQ W^Q      dW^Q = dQ^T X      db^Q = sum of dQ        and so for key and value
// Tables are packed for the products with W and not W^T anew in each call: an optimizer has changed
// them since the last one. Memory: four matrices of heads, tables once more, X in panels.
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "attention/backward/backward.h"
#include "attention/overlap.h"
#include "core/check.h"
#include "core/convert.h"
#include "kernels/matmul.h"
#include "module/gradients.h"
#include "module/saved.h"
#include "module/state.h"
#include "runtime/scratch.h"

namespace headwise {
namespace {

using kernels::MatmulArgs;
using kernels::PackedWeights;
using module::Heads;
using module::HeadsBuffer;

constexpr const char* kInputNames[] = {"query", "key", "value"};
constexpr const char* kGradientNames[] = {"d_query", "d_key", "d_value"};

bool same_place(const ConstTensorView& a, const ConstTensorView& b) {
  return a.data == b.data && a.shape == b.shape && a.strides == b.strides;
}

// What is read, with its name.
using Read = std::vector<module::NamedInput>;

void check_gradient(const char* name, const TensorView& view, const ConstTensorView& of,
                    const Read& read) {
  core::check_dtype(name, view.dtype, of.dtype);
  core::check_shape(name, view.shape, of.shape);
  attention::check_writable(name, view);
  for (const module::NamedInput& other : read)
    attention::check_apart(name, view, other.name, other.view);
}

// Everything that can be wrong with a call.
void check(const MultiheadAttentionOptions& options, const SavedForward::State& saved,
           const OutputGradients& d_result, const InputGradients& d_inputs) {
  const module::Call& call = saved.call;
  if (d_result.output.data != nullptr) {
    core::check_dtype("d_output", d_result.output.dtype, options.dtype);
    core::check_view("d_output", d_result.output);
    core::check_shape("d_output", d_result.output.shape, call.output_shape);
  }
  if (d_result.weights.data != nullptr) {
    if (!call.weights_shape)
      core::throw_argument("d_weights", "shape " + to_string(d_result.weights.shape),
                           "none, as forward returned no weights");
    core::check_dtype("d_weights", d_result.weights.dtype, options.dtype);
    core::check_view("d_weights", d_result.weights);
    core::check_shape("d_weights", d_result.weights.shape, *call.weights_shape);
  }
  Read read;
  const auto reads = [&read](const char* name, const ConstTensorView& view) {
    if (view.data != nullptr) read.push_back({name, view});
  };
  reads("d_output", d_result.output);
  reads("d_weights", d_result.weights);
  for (std::size_t i = 0; i < 3; ++i) reads(kInputNames[i], saved.inputs[i]);
  if (saved.options.attn_mask) reads("attn_mask", saved.options.attn_mask->view());
  if (saved.options.key_padding_mask)
    reads("key_padding_mask", saved.options.key_padding_mask->view());

  const TensorView* const d_input[] = {&d_inputs.query, &d_inputs.key, &d_inputs.value};
  for (std::size_t i = 0; i < 3; ++i) {
    if (d_input[i]->data == nullptr) continue;
    check_gradient(kGradientNames[i], *d_input[i], saved.inputs[i], read);
    for (std::size_t j = 0; j < i; ++j)
      if (d_input[j]->data != nullptr && !same_place(*d_input[i], *d_input[j]))
        attention::check_apart(kGradientNames[i], *d_input[i], kGradientNames[j], *d_input[j]);
  }
  const auto check_mask = [&](const char* name, const TensorView& view,
                              const std::optional<Mask>& mask) {
    if (view.data == nullptr) return;
    if (!mask || mask->kind() != Mask::Kind::bias)
      core::throw_argument(name, "shape " + to_string(view.shape),
                           "none, as forward had no Mask::bias there");
    check_gradient(name, view, mask->view(), read);
    for (std::size_t i = 0; i < 3; ++i)
      if (d_input[i]->data != nullptr)
        attention::check_apart(name, view, kGradientNames[i], *d_input[i]);
  };
  check_mask("d_attn_mask", d_inputs.attn_mask, saved.options.attn_mask);
  check_mask("d_key_padding_mask", d_inputs.key_padding_mask, saved.options.key_padding_mask);
  if (d_inputs.attn_mask.data != nullptr && d_inputs.key_padding_mask.data != nullptr)
    attention::check_apart("d_key_padding_mask", d_inputs.key_padding_mask, "d_attn_mask",
                           d_inputs.attn_mask);
}

ConstTensorView transposed(const ConstTensorView& w) {
  return {w.data, w.dtype, {w.shape[1], w.shape[0]}, {w.strides[1], w.strides[0]}};
}

// [outer, inner, width] as one matrix of rows; copied where its rows are not evenly spaced.
ConstTensorView as_matrix(const ConstTensorView& x, runtime::ScratchFrame& scratch) {
  const std::size_t outer = x.shape[0], inner = x.shape[1], width = x.shape[2];
  const auto n = static_cast<std::ptrdiff_t>(inner);
  if (outer == 1 || inner == 0)
    return {x.data, x.dtype, {outer * inner, width}, {x.strides[1], x.strides[2]}};
  if (inner == 1 || x.strides[0] == n * x.strides[1])
    return {x.data,
            x.dtype,
            {outer * inner, width},
            {inner == 1 ? x.strides[0] : x.strides[1], x.strides[2]}};
  const TensorView copy(scratch.take<std::byte>(outer * inner * width * size_of(x.dtype)), x.dtype,
                        x.shape);
  core::convert(x, copy);
  return {copy.data, x.dtype, {outer * inner, width}};
}

// The rows of heads that were projected, without the appended ones.
ConstTensorView projected_rows(const HeadsBuffer& heads, const module::Rows& rows,
                               runtime::ScratchFrame& scratch) {
  const auto ld = static_cast<std::ptrdiff_t>(heads.ld);
  return as_matrix({heads.data,
                    heads.dtype,
                    {rows.view.shape[0], rows.view.shape[1], heads.width},
                    {static_cast<std::ptrdiff_t>(heads.inner) * ld, ld, 1}},
                   scratch);
}

struct Module {
  const MultiheadAttentionOptions& options;
  const module::Sizes& sizes;
  const module::Parameters& parameters;
};

class Backward {
 public:
  Backward(const Module& module, const SavedForward::State& saved,
           const ParameterGradients::State& parameters, const InputGradients& inputs)
      : module_(module),
        saved_(saved),
        call_(saved.call),
        parameters_(parameters),
        d_inputs_{&inputs.query, &inputs.key, &inputs.value},
        rows_{&saved.call.query, &saved.call.key, &saved.call.value},
        d_(saved.call, module.sizes, saved.heads.q.dtype) {
    for (std::size_t i = 0; i < 3; ++i) {
      const ParameterGradients::State::Projection p = parameters.projection(i);
      wanted_[i] = p.weight.data != nullptr || p.bias.data != nullptr ||
                   d_inputs_[i]->data != nullptr || appended(i).data != nullptr;
      HeadsBuffer& heads = heads_of(i);
      if (wanted_[i]) heads.data = scratch_.take<std::byte>(heads.bytes());
    }
    d_.o.data = scratch_.take<std::byte>(d_.o.bytes());
  }

  void heads_of_output(const ConstTensorView& d_output) {
    if (d_output.data == nullptr) {
      std::fill_n(d_.o.data, d_.o.bytes(), std::byte{0});
      return;
    }
    const PackedWeights w(transposed(module_.parameters.output_projection().weight), {});
    const MatmulArgs args = product_of_rows(w, rows_of_output(d_output), d_.o);
    kernels::matmul({&args, 1});
  }

  void attend(const ConstTensorView& d_weights, const InputGradients& inputs) {
    const std::size_t h = module_.sizes.n_heads, h_kv = module_.sizes.n_kv_heads;
    AttentionState state{
        d_.o.heads(h), saved_.heads.o.heads(h), saved_.row_max, saved_.row_sum, {}, {}};
    if (d_weights.data != nullptr) {
      const TensorView wide(
          scratch_.take<std::byte>(element_count(d_weights.shape) * size_of(d_.o.dtype)),
          d_.o.dtype, d_weights.shape);
      core::convert(d_weights, wide);
      (per_head_weights(call_) ? state.d_weights : state.d_average_weights) =
          with_batch(call_, wide);
    }
    AttentionGradients gradients;
    place_mask_gradients(module_.sizes, saved_.options, call_, inputs, gradients);
    if (wanted_[0]) gradients.dq = d_.q.heads(h);
    if (wanted_[1]) gradients.dk = d_.k.heads(h_kv);
    if (wanted_[2]) gradients.dv = d_.v.heads(h_kv);
    attention::backward({saved_.heads.q.heads(h), saved_.heads.k.heads(h_kv),
                         saved_.heads.v.heads(h_kv), call_.attention, state, gradients},
                        module_.options.dtype);
  }

  void parameters(const ConstTensorView& d_output) {
    runtime::ScratchFrame frame;
    std::vector<module::WeightGradient> sums;
    for (std::size_t i = 0; i < 3; ++i) {
      const ParameterGradients::State::Projection to = parameters_.projection(i);
      if (to.weight.data != nullptr || to.bias.data != nullptr)
        sums.push_back(
            {projected_rows(heads_of(i), *rows_[i], frame), as_matrix(rows_[i]->view, frame), to});
      if (const TensorView to_appended = appended(i); to_appended.data != nullptr)
        add_appended(heads_of(i), to_appended);
    }
    const ParameterGradients::State::Projection to = parameters_.projection(3);
    if (d_output.data != nullptr && (to.weight.data != nullptr || to.bias.data != nullptr))
      sums.push_back({as_matrix(rows_of_output(d_output).view, frame),
                      projected_rows(saved_.heads.o, call_.query, frame), to});
    module::add_weight_gradients(sums);
  }

  // dX of each input; where several are to be summed, in the order of query, key, value.
  void inputs() {
    runtime::ScratchFrame frame;
    std::vector<PackedWeights> tables;
    std::vector<MatmulArgs> products;
    std::vector<std::pair<TensorView, TensorView>> sums;  // a term, and where it goes
    tables.reserve(3);
    for (std::size_t i = 0; i < 3; ++i) {
      if (d_inputs_[i]->data == nullptr) continue;
      TensorView to = *d_inputs_[i];
      if (is_shared(i)) {
        to = {frame.take<std::byte>(element_count(to.shape) * size_of(d_.q.dtype)), d_.q.dtype,
              to.shape};
        sums.push_back({to, *d_inputs_[i]});
      }
      tables.emplace_back(transposed(module_.parameters.input_projection(i).weight),
                          ConstTensorView{});
      products.push_back(product_of_heads(tables.back(), heads_of(i), to));
    }
    kernels::matmul(products);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const auto& [sum, to] = sums[i];
      bool first = true;
      for (std::size_t j = 0; j < i; ++j) first = first && !same_place(sums[j].second, to);
      if (!first) continue;
      const auto flat = [](const TensorView& x) {
        const std::size_t width = x.shape.from_back(0);
        return TensorView(x.data, x.dtype, {element_count(x.shape) / width, width});
      };
      for (std::size_t j = i + 1; j < sums.size(); ++j)
        if (same_place(sums[j].second, to)) module::add_to(flat(sums[j].first), flat(sum));
      core::convert(sum, to);
    }
  }

 private:
  HeadsBuffer& heads_of(std::size_t i) { return i == 0 ? d_.q : i == 1 ? d_.k : d_.v; }

  module::Rows rows_of_output(const ConstTensorView& d_output) const {
    return module::rows_of(d_output, module_.options.batch_first);
  }

  // The gradient of the appended key (1) or value (2); no data: not there, or not wanted.
  TensorView appended(std::size_t i) const {
    if (i == 0) return {};
    return parameters_.wanted(i == 1 ? "bias_k" : "bias_v");
  }

  void add_appended(const HeadsBuffer& heads, const TensorView& to) const {
    // One step of every batch index.
    const std::size_t B = call_.B, width = heads.width;
    if (B == 0) return;
    const auto apart =
        static_cast<std::ptrdiff_t>(heads.ld * (heads.batch_outer ? heads.inner : 1));
    module::add_column_sums({heads.step(call_.T_k, 0), heads.dtype, {B, width}, {apart, 1}}, to);
  }

  bool is_shared(std::size_t i) const {
    for (std::size_t j = 0; j < 3; ++j)
      if (j != i && d_inputs_[j]->data != nullptr && same_place(*d_inputs_[i], *d_inputs_[j]))
        return true;
    return false;
  }

  const Module module_;
  const SavedForward::State& saved_;
  const module::Call& call_;
  const ParameterGradients::State& parameters_;
  const TensorView* const d_inputs_[3];
  const module::Rows* const rows_[3];
  Heads d_;         // dQ, dK, dV and dO
  bool wanted_[3];  // of dQ, dK, dV
  runtime::ScratchFrame scratch_;
};

}  // namespace

SavedForward::SavedForward() = default;
SavedForward::~SavedForward() = default;
SavedForward::SavedForward(SavedForward&&) noexcept = default;
SavedForward& SavedForward::operator=(SavedForward&&) noexcept = default;

SavedForward::State::State(const module::Call& of, const module::Sizes& sizes, DType dtype,
                           Buffer before)
    : call(of), heads(of, sizes, dtype), memory(std::move(before)) {
  const Shape rows{call.B, sizes.n_heads, call.T_q};
  const std::size_t row_bytes = element_count(rows) * size_of(dtype);
  std::size_t bytes = 0;
  const auto place = [&bytes](std::size_t n) {
    const std::size_t at = bytes;
    bytes += (n + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment;
    return at;
  };
  HeadsBuffer* const buffers[] = {&heads.q, &heads.k, &heads.v, &heads.o};
  std::size_t at[4];
  for (std::size_t i = 0; i < 4; ++i) at[i] = place(buffers[i]->bytes());
  const std::size_t max_at = place(row_bytes), sum_at = place(row_bytes);
  if (memory.size() < bytes) memory = Buffer(bytes);
  for (std::size_t i = 0; i < 4; ++i) buffers[i]->data = memory.data() + at[i];
  row_max = {memory.data() + max_at, dtype, rows};
  row_sum = {memory.data() + sum_at, dtype, rows};
}

ForwardResult MultiheadAttention::forward(const ConstTensorView& query, const ConstTensorView& key,
                                          const ConstTensorView& value,
                                          const ForwardOptions& options,
                                          SavedForward& saved) const {
  const State& module = *state_;
  const module::Call checked = module::check_call(
      module.options, module.sizes, {{"query", query}, {"key", key}, {"value", value}}, options);
  Buffer before = saved.state_ ? std::move(saved.state_->memory) : Buffer();
  saved.state_ = std::make_unique<SavedForward::State>(
      checked, module.sizes, module.projections->dtype(), std::move(before));
  SavedForward::State& state = *saved.state_;
  ForwardResult result{Tensor(module.options.dtype, checked.output_shape), {}};
  if (checked.weights_shape) result.weights.emplace(module.options.dtype, *checked.weights_shape);
  AttentionExtras extras;
  extras.row_max = state.row_max;
  extras.row_sum = state.row_sum;
  module.run(state.call, options.dropout_seed, state.heads, extras, result.output.view(),
             result.weights ? result.weights->view() : TensorView());
  state.module = state_.get();
  state.n_changes = module.n_changes;
  state.inputs[0] = query;
  state.inputs[1] = key;
  state.inputs[2] = value;
  state.options = options;
  return result;
}

void MultiheadAttention::backward(const SavedForward& saved, const OutputGradients& d_result,
                                  ParameterGradients& parameters,
                                  const InputGradients& inputs) const {
  if (saved.empty() || saved.state_->module != state_.get())
    core::throw_argument("saved", saved.empty() ? "nothing" : "a call of another module",
                         "what a forward call of this module left");
  if (saved.state_->n_changes != state_->n_changes)
    core::throw_argument("saved", "a call from before parameters were changed",
                         "one with the parameters of now");
  parameters.state_->check_same(state_->parameters);
  check(state_->options, *saved.state_, d_result, inputs);
  Backward work({state_->options, state_->sizes, state_->parameters}, *saved.state_,
                *parameters.state_, inputs);
  work.heads_of_output(d_result.output);
  work.attend(d_result.weights, inputs);
  work.parameters(d_result.output);
  work.inputs();
}

std::unique_ptr<ParameterGradients::State> MultiheadAttention::new_gradients() const {
  return std::make_unique<ParameterGradients::State>(state_->options, state_->sizes);
}

}  // namespace headwise
