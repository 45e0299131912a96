#include "headwise/multihead_attention.h"

#include <utility>

#include "attention/forward.h"
#include "core/convert.h"
#include "module/parameters.h"
#include "module/projection.h"
#include "module/state.h"
#include "module/torch_rules.h"
#include "runtime/scratch.h"

namespace headwise {

using module::HeadsBuffer;

MultiheadAttention::State::State(const MultiheadAttentionOptions& wanted)
    : options(wanted), sizes(module::check_options(wanted)), parameters(wanted, sizes) {
  if (options.names == MultiheadAttentionOptions::Names::fused) options.bias = false;
}

MultiheadAttention::MultiheadAttention(std::unique_ptr<State> state) : state_(std::move(state)) {}

MultiheadAttention::MultiheadAttention(const MultiheadAttentionOptions& options,
                                       Generator& generator)
    : state_(std::make_unique<State>(options)) {
  state_->parameters.draw(generator);
  state_->projections.emplace(state_->parameters);
}

MultiheadAttention::~MultiheadAttention() = default;
MultiheadAttention::MultiheadAttention(MultiheadAttention&&) noexcept = default;
MultiheadAttention& MultiheadAttention::operator=(MultiheadAttention&&) noexcept = default;

const MultiheadAttentionOptions& MultiheadAttention::options() const { return state_->options; }
std::size_t MultiheadAttention::head_dim() const { return state_->sizes.d_head; }
std::size_t MultiheadAttention::num_kv_heads() const { return state_->sizes.n_kv_heads; }
void MultiheadAttention::train(bool mode) { state_->training = mode; }
bool MultiheadAttention::training() const { return state_->training; }

void MultiheadAttention::State::run(module::Call& call, std::uint64_t dropout_seed,
                                    const TensorView& output, const TensorView& weights) const {
  module::Heads heads(call, sizes, projections->heads_dtype(options.dtype));
  runtime::ScratchFrame scratch;
  for (HeadsBuffer* buffer : {&heads.q, &heads.k, &heads.v, &heads.o})
    buffer->data = scratch.take<std::byte>(buffer->bytes());
  run(call, dropout_seed, heads, {}, output, weights);
}

void MultiheadAttention::State::run(module::Call& call, std::uint64_t dropout_seed,
                                    const module::Heads& heads, AttentionExtras extras,
                                    const TensorView& output, const TensorView& weights) const {
  call.attention.dropout_p = training ? options.dropout : 0.0;
  call.attention.dropout_seed = dropout_seed;
  // Computed in the heads' dtype, returned in the module's.
  const DType dtype = heads.q.dtype;
  runtime::ScratchFrame scratch;
  TensorView computed = weights;
  const bool narrow = weights.data != nullptr && weights.dtype != dtype;
  if (narrow) computed = {scratch.take<float>(element_count(weights.shape)), dtype, weights.shape};

  project_inputs(*projections, call, heads);
  (module::per_head_weights(call) ? extras.weights : extras.average_weights) =
      module::with_batch(call, computed);
  attention::forward(
      {heads.q.heads(sizes.n_heads), heads.k.heads(sizes.n_kv_heads),
       heads.v.heads(sizes.n_kv_heads), call.attention, heads.o.heads(sizes.n_heads), extras, true},
      options.dtype);
  project_output(*projections, heads.o, output);
  if (narrow) core::convert(computed, weights);
}

ForwardResult MultiheadAttention::forward(const ConstTensorView& query, const ConstTensorView& key,
                                          const ConstTensorView& value,
                                          const ForwardOptions& options) const {
  const State& state = *state_;
  module::Call call = module::check_call(
      state.options, state.sizes, {{"query", query}, {"key", key}, {"value", value}}, options);
  ForwardResult result{Tensor(state.options.dtype, call.output_shape), {}};
  if (call.weights_shape) result.weights.emplace(state.options.dtype, *call.weights_shape);
  state.run(call, options.dropout_seed, result.output.view(),
            result.weights ? result.weights->view() : TensorView());
  return result;
}

void MultiheadAttention::forward(const ConstTensorView& query, const ConstTensorView& key,
                                 const ConstTensorView& value, const ForwardOptions& options,
                                 const TensorView& output, const TensorView& weights) const {
  const State& state = *state_;
  const module::NamedInput inputs[] = {{"query", query}, {"key", key}, {"value", value}};
  ForwardOptions wanted = options;
  wanted.need_weights = weights.data != nullptr;
  module::Call call = module::check_call(state.options, state.sizes, inputs, wanted);
  module::check_outputs(state.options, call, inputs, options,
                        {{"output", output}, {"weights", weights}});
  state.run(call, options.dropout_seed, output, weights);
}

std::vector<NamedView> MultiheadAttention::parameters() const {
  const module::Parameters& parameters = state_->parameters;
  std::vector<NamedView> all;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    all.push_back({parameters.name(i), parameters.view(i)});
  return all;
}

std::size_t MultiheadAttention::parameter_count() const {
  std::size_t count = 0;
  for (const NamedView& parameter : parameters()) count += element_count(parameter.view.shape);
  return count;
}

void MultiheadAttention::State::replace(module::Parameters changed) {
  // May throw; nothing has changed then.
  module::Projections packed(changed, projections ? &*projections : nullptr);
  parameters = std::move(changed);
  projections = std::move(packed);
  ++n_changes;
}

void MultiheadAttention::load_state_dict(std::span<const NamedView> state) {
  module::Parameters changed = state_->parameters;
  changed.set_all(state);
  state_->replace(std::move(changed));
}

void MultiheadAttention::set_parameter(const std::string& name, const ConstTensorView& value) {
  module::Parameters changed = state_->parameters;
  changed.set(name, value);
  state_->replace(std::move(changed));
}

void MultiheadAttention::update(
    const std::function<void(std::span<const NamedTensorView>)>& change) {
  // Tables are known by their place: changed in it, they would count as packed already.
  const auto pack = [this] { state_->projections.emplace(state_->parameters); };
  ++state_->n_changes;
  try {
    change(state_->parameters.writable());
  } catch (...) {
    pack();
    throw;
  }
  pack();
}

}  // namespace headwise
