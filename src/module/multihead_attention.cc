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
namespace {

using module::HeadsBuffer;

// The weights of a call: computed in the arithmetic's dtype, returned in the module's.
class WeightsOutput {
 public:
  WeightsOutput(const module::Call& call, DType module_dtype, DType arithmetic) {
    if (!call.weights_shape) return;
    result_.emplace(module_dtype, *call.weights_shape);
    if (module_dtype != arithmetic) wide_.emplace(arithmetic, *call.weights_shape);
  }

  void ask(const module::Call& call, std::size_t n_heads, AttentionExtras& extras) {
    if (!result_) return;
    const std::size_t T_k = call.T_k + call.n_appended;
    Tensor& target = wide_ ? *wide_ : *result_;
    const bool per_head = call.weights_shape->size() == (call.batched ? 4u : 3u);
    if (per_head)
      extras.weights = {target.view().data, target.dtype(), {call.B, n_heads, call.T_q, T_k}};
    else
      extras.average_weights = {target.view().data, target.dtype(), {call.B, call.T_q, T_k}};
  }

  std::optional<Tensor> take() {
    if (wide_) core::convert(wide_->view(), result_->view());
    return std::move(result_);
  }

 private:
  std::optional<Tensor> result_, wide_;
};

}  // namespace

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

ForwardResult MultiheadAttention::forward(const ConstTensorView& query, const ConstTensorView& key,
                                          const ConstTensorView& value,
                                          const ForwardOptions& options) const {
  const module::Sizes& sizes = state_->sizes;
  const module::Projections& projections = *state_->projections;
  module::Call call = module::check_call(
      state_->options, sizes, {{"query", query}, {"key", key}, {"value", value}}, options);
  call.attention.dropout_p = state_->training ? state_->options.dropout : 0.0;
  call.attention.dropout_seed = options.dropout_seed;

  const DType arithmetic = projections.dtype();
  HeadsBuffer q(call.query, sizes.q_width, 0, arithmetic);
  HeadsBuffer k(call.key, sizes.kv_width, call.n_appended, arithmetic);
  HeadsBuffer v(call.value, sizes.kv_width, call.n_appended, arithmetic);
  HeadsBuffer o(call.query, sizes.q_width, 0, arithmetic);
  Tensor output(state_->options.dtype, call.output_shape);
  WeightsOutput weights(call, state_->options.dtype, arithmetic);

  runtime::ScratchFrame scratch;
  for (HeadsBuffer* buffer : {&q, &k, &v, &o})
    buffer->data = scratch.take<std::byte>(buffer->bytes());

  project_inputs(projections, call, q, k, v);
  AttentionExtras extras;
  weights.ask(call, sizes.n_heads, extras);
  attention::forward({q.heads(sizes.n_heads), k.heads(sizes.n_kv_heads), v.heads(sizes.n_kv_heads),
                      call.attention, o.heads(sizes.n_heads), extras},
                     state_->options.dtype);
  project_output(projections, o, output.view());
  return {std::move(output), weights.take()};
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
  module::Projections packed(changed);  // may throw; nothing has changed then
  parameters = std::move(changed);
  projections = std::move(packed);
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

}  // namespace headwise
