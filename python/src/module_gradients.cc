// The module's forward call with what its gradients need, and the gradients.
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "arrays.h"
#include "gil.h"
#include "headwise/module_gradients.h"
#include "module.h"

namespace headwise::python {
namespace {

// What a call read, kept alive, and what it left for backward.
struct ForwardState {
  ForwardState(const Module& of, nb::handle query, nb::handle key, nb::handle value)
      : module(of.now),
        inputs(query, key, value),
        like{nb::borrow(query), nb::borrow(key), nb::borrow(value)} {}

  std::shared_ptr<const MultiheadAttention> module;
  Inputs inputs;
  std::optional<Input> padding, mask;
  nb::object like[3];  // whose kinds of array the gradients have
  SavedForward saved;
};

nb::tuple forward(const Module& self, nb::handle query, nb::handle key, nb::handle value,
                  nb::handle key_padding_mask, bool need_weights, nb::handle attn_mask,
                  bool average_attn_weights, bool is_causal, std::uint64_t dropout_seed) {
  auto state = std::make_unique<ForwardState>(self, query, key, value);
  ForwardOptions options;
  if (!key_padding_mask.is_none())
    options.key_padding_mask =
        mask_of("key_padding_mask", state->padding.emplace("key_padding_mask", key_padding_mask),
                Mask::Kind::ignore);
  if (!attn_mask.is_none())
    options.attn_mask =
        mask_of("attn_mask", state->mask.emplace("attn_mask", attn_mask), Mask::Kind::ignore);
  options.need_weights = need_weights;
  options.average_attn_weights = average_attn_weights;
  options.is_causal = is_causal;
  options.dropout_seed = dropout_seed;
  ForwardResult result = [&] {
    const ReleaseGil unlocked;
    return state->module->forward(state->inputs.q(), state->inputs.k(), state->inputs.v(), options,
                                  state->saved);
  }();
  nb::object weights = nb::none();
  if (result.weights) weights = array_like(query, std::move(*result.weights));
  return nb::make_tuple(array_like(query, std::move(result.output)), weights,
                        nb::cast(state.release(), nb::rv_policy::take_ownership));
}

nb::tuple backward(const Module&, const ForwardState& state, nb::handle grad_output,
                   nb::handle grad_weights) {
  const Input d_output("grad_output", grad_output);
  std::optional<Input> d_weights;
  OutputGradients d_result{d_output.view(), {}};
  if (!grad_weights.is_none())
    d_result.weights = d_weights.emplace("grad_weights", grad_weights).view();
  ParameterGradients parameters(*state.module);
  Tensor d[3];
  {
    const ReleaseGil unlocked;
    const ConstTensorView* const views[] = {&state.inputs.q(), &state.inputs.k(),
                                            &state.inputs.v()};
    for (std::size_t i = 0; i < 3; ++i) d[i] = Tensor(views[i]->dtype, views[i]->shape);
    state.module->backward(state.saved, d_result, parameters,
                           {d[0].view(), d[1].view(), d[2].view(), {}, {}});
  }
  nb::dict by_name;
  for (const NamedTensorView& p : parameters.views())
    by_name[p.name.c_str()] = numpy_array(Tensor::copy_of(p.view));
  return nb::make_tuple(array_like(state.like[0], std::move(d[0])),
                        array_like(state.like[1], std::move(d[1])),
                        array_like(state.like[2], std::move(d[2])), by_name);
}

constexpr const char* kForwardDoc =
    R"(forward, with what its gradients need.

Arguments as there, but dropout draws from dropout_seed. Returns the output, the weights or None,
and a state for backward. The state keeps the arrays of the call alive; they have to stay as they
are until then. Parameters that are loaded later don't change it.)";

constexpr const char* kBackwardDoc =
    R"(The gradients of a call of forward_with_state.

state         what that call returned
grad_output   in the shape and dtype of its output
grad_weights  the same of its weights, for a loss on attention itself

Returns the gradients of query, key and value, in their shapes and dtypes, and those of the
parameters by name: NumPy arrays of float32 (float64 for a float64 module). An array that was given
for several arguments has the sum of their gradients.)";

}  // namespace

void def_gradients(nb::module_& m, nb::class_<Module>& type) {
  using namespace nb::literals;
  nb::class_<ForwardState>(m, "ForwardState",
                           "What MultiheadAttention.forward_with_state keeps for backward.");
  type.def("forward_with_state", &forward, "query"_a, "key"_a, "value"_a,
           "key_padding_mask"_a = nb::none(), "need_weights"_a = true, "attn_mask"_a = nb::none(),
           "average_attn_weights"_a = true, "is_causal"_a = false, "dropout_seed"_a = 0,
           nb::sig("def forward_with_state(self, query: Array, key: SupportsArray, value: "
                   "SupportsArray, key_padding_mask: SupportsArray | None = None, need_weights: "
                   "bool = True, attn_mask: SupportsArray | None = None, average_attn_weights: "
                   "bool = True, is_causal: bool = False, dropout_seed: int = 0) -> tuple[Array, "
                   "Array | None, ForwardState]"),
           kForwardDoc);
  type.def("backward", &backward, "state"_a, "grad_output"_a, "grad_weights"_a = nb::none(),
           nb::sig("def backward(self, state: ForwardState, grad_output: SupportsArray, "
                   "grad_weights: SupportsArray | None = None) -> tuple[Array, Array, Array, "
                   "dict[str, numpy.ndarray]]"),
           kBackwardDoc);
}

}  // namespace headwise::python
