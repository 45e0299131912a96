#include "headwise/attention.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "arrays.h"
#include "bindings.h"
#include "errors.h"
#include "gil.h"
#include "headwise/attention_backward.h"
#include "headwise/plan.h"
#include "headwise/random.h"

namespace headwise::python {
namespace {

// The arguments of a call, seen as the library wants them.
class Call {
 public:
  Call(nb::handle query, nb::handle key, nb::handle value, nb::handle attn_mask)
      : inputs(query, key, value) {
    if (!attn_mask.is_none())
      options.mask = mask_of("attn_mask", mask_.emplace("attn_mask", attn_mask), Mask::Kind::keep);
  }
  Inputs inputs;
  AttentionOptions options;

 private:
  std::optional<Input> mask_;
};

// The arguments that all calls have in common.
void set_options(Call& call, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  if (is_causal) call.options.causal = CausalAlign::top_left;
  call.options.scale = scale;
  call.options.enable_gqa = enable_gqa;
}

// A forward call that keeps its state, and its gradients, drop by the same seed.
void set_dropout(Call& call, nb::handle p, std::uint64_t seed) {
  call.options.dropout_p = probability_argument("dropout_p", p);
  call.options.dropout_seed = seed;
}

nb::object attention(nb::handle query, nb::handle key, nb::handle value, nb::handle attn_mask,
                     nb::handle dropout_p, bool is_causal, std::optional<double> scale,
                     bool enable_gqa) {
  Call call(query, key, value, attn_mask);
  call.options.dropout_p = probability_argument("dropout_p", dropout_p);
  if (call.options.dropout_p > 0.0) call.options.dropout_seed = default_generator().next_u64();
  set_options(call, is_causal, scale, enable_gqa);
  Tensor o = with_python_names([&] {
    const ReleaseGil unlocked;
    return scaled_dot_product_attention(call.inputs.q(), call.inputs.k(), call.inputs.v(),
                                        call.options);
  });
  return array_like(query, std::move(o));
}

nb::tuple attention_with_state(nb::handle query, nb::handle key, nb::handle value,
                               nb::handle attn_mask, nb::handle dropout_p, bool is_causal,
                               std::optional<double> scale, bool enable_gqa,
                               std::uint64_t dropout_seed) {
  Call call(query, key, value, attn_mask);
  set_dropout(call, dropout_p, dropout_seed);
  set_options(call, is_causal, scale, enable_gqa);
  const ConstTensorView q = call.inputs.q(), k = call.inputs.k(), v = call.inputs.v();
  Tensor o, row_max, row_sum;
  with_python_names([&] {
    const ReleaseGil unlocked;
    const Shape shape = attention_output_shape(q, k, v, call.options);
    const Shape rows(shape.begin(), shape.end() - 1);
    const DType row_dtype = q.dtype == DType::f64 ? DType::f64 : DType::f32;
    o = Tensor(q.dtype, shape);
    row_max = Tensor(row_dtype, rows);
    row_sum = Tensor(row_dtype, rows);
    AttentionExtras extras;
    extras.row_max = row_max.view();
    extras.row_sum = row_sum.view();
    scaled_dot_product_attention(q, k, v, call.options, o.view(), extras);
  });
  return nb::make_tuple(array_like(query, std::move(o)), array_like(query, std::move(row_max)),
                        array_like(query, std::move(row_sum)));
}

nb::tuple attention_backward(nb::handle grad_output, nb::handle query, nb::handle key,
                             nb::handle value, nb::handle output, nb::handle row_max,
                             nb::handle row_sum, nb::handle attn_mask, nb::handle dropout_p,
                             bool is_causal, std::optional<double> scale, bool enable_gqa,
                             std::uint64_t dropout_seed) {
  Call call(query, key, value, attn_mask);
  set_dropout(call, dropout_p, dropout_seed);
  set_options(call, is_causal, scale, enable_gqa);
  const Input d_o("grad_output", grad_output), o("output", output), m("row_max", row_max),
      l("row_sum", row_sum);
  const ConstTensorView q = call.inputs.q(), k = call.inputs.k(), v = call.inputs.v();
  const bool biased = call.options.mask && call.options.mask->kind() == Mask::Kind::bias;
  Tensor dq, dk, dv, d_mask;
  with_python_names([&] {
    const ReleaseGil unlocked;
    attention_output_shape(q, k, v, call.options);  // refuses what has no gradient either
    dq = Tensor(q.dtype, q.shape);
    dk = Tensor(k.dtype, k.shape);
    dv = Tensor(v.dtype, v.shape);
    AttentionGradients wanted{dq.view(), dk.view(), dv.view(), {}, {}};
    if (biased) {
      d_mask = Tensor(call.options.mask->view().dtype, call.options.mask->view().shape);
      wanted.d_mask = d_mask.view();
    }
    scaled_dot_product_attention_backward(q, k, v, call.options,
                                          {d_o.view(), o.view(), m.view(), l.view()}, wanted);
  });
  return nb::make_tuple(array_like(query, std::move(dq)), array_like(key, std::move(dk)),
                        array_like(value, std::move(dv)),
                        biased ? array_like(attn_mask, std::move(d_mask)) : nb::none());
}

AttentionPlan explain(nb::handle query, nb::handle key, nb::handle value, nb::handle attn_mask,
                      bool is_causal, bool enable_gqa) {
  Call call(query, key, value, attn_mask);
  set_options(call, is_causal, {}, enable_gqa);
  return with_python_names([&] {
    return explain_attention(call.inputs.q(), call.inputs.k(), call.inputs.v(), call.options);
  });
}

std::string plan_text(const AttentionPlan& plan) {
  return "<AttentionPlan " + plan.kernel + ": " + plan.reason + "; " +
         std::to_string(plan.n_tasks) + " tasks on " + std::to_string(plan.n_threads) + " threads>";
}

constexpr const char* kAttentionDoc =
    R"(softmax(scale * query @ key^T + mask) @ value, one softmax per query.

The arguments mean what they mean in torch.nn.functional.scaled_dot_product_attention.

query       (..., n_heads, T_q, d_head)
key         (..., n_kv_heads, T_k, d_head)
value       (..., n_kv_heads, T_k, d_v)
attn_mask   broadcasts to (..., n_heads, T_q, T_k): bool, where True takes part, or a float that
            is added to the scores, where -inf hides a key
dropout_p   probability of dropping a weight; the seed comes from the generator of manual_seed
is_causal   query t sees the keys up to t; beside a mask, both have to allow a key
scale       default 1 / sqrt(d_head)
enable_gqa  n_heads may be a multiple of n_kv_heads

Returns (..., n_heads, T_q, d_v). Arrays are NumPy's, or have DLPack (PyTorch, JAX), with any
strides, all of one dtype: float32, float64, bfloat16 or float16; the result is of query's kind.
A query that sees no key gives 0; a hidden key or value is never read, even if it is NaN.
Raises ValueError or TypeError for arguments that do not fit, before any work.)";

constexpr const char* kWithStateDoc =
    R"(scaled_dot_product_attention, with what its gradients need.

Arguments as there, but dropout draws from dropout_seed. Returns the output and, for each query, the
largest score and the sum of exp(score - largest): (..., n_heads, T_q), float32 (float64 for
float64); -inf and 0 for a query that sees no key.)";

constexpr const char* kBackwardDoc =
    R"(The gradients of scaled_dot_product_attention_with_state with the same arguments.

grad_output       (..., n_heads, T_q, d_v), with any strides
output, row_max, row_sum   what that call returned

Returns the gradients of query, key, value and of a floating attn_mask (None for others), each in the
shape and dtype of what it is the gradient of, summed over what that was broadcast to. Memory grows
with T_q + T_k. First derivatives only: an array that wants a gradient of its own is an error.)";

}  // namespace

void bind_attention(nb::module_& m) {
  using namespace nb::literals;
  m.def("scaled_dot_product_attention", &attention, "query"_a, "key"_a, "value"_a,
        "attn_mask"_a = nb::none(), "dropout_p"_a = 0.0, "is_causal"_a = false,
        "scale"_a = nb::none(), "enable_gqa"_a = false,
        nb::sig("def scaled_dot_product_attention(query: Array, key: SupportsArray, value: "
                "SupportsArray, attn_mask: SupportsArray | None = None, dropout_p: float = 0.0, "
                "is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) "
                "-> Array"),
        kAttentionDoc);

  m.def("scaled_dot_product_attention_with_state", &attention_with_state, "query"_a, "key"_a,
        "value"_a, "attn_mask"_a = nb::none(), "dropout_p"_a = 0.0, "is_causal"_a = false,
        "scale"_a = nb::none(), "enable_gqa"_a = false, "dropout_seed"_a = 0,
        nb::sig("def scaled_dot_product_attention_with_state(query: Array, key: SupportsArray, "
                "value: SupportsArray, attn_mask: SupportsArray | None = None, dropout_p: float = "
                "0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = "
                "False, dropout_seed: int = 0) -> tuple[Array, Array, Array]"),
        kWithStateDoc);

  m.def("scaled_dot_product_attention_backward", &attention_backward, "grad_output"_a, "query"_a,
        "key"_a, "value"_a, "output"_a, "row_max"_a, "row_sum"_a, "attn_mask"_a = nb::none(),
        "dropout_p"_a = 0.0, "is_causal"_a = false, "scale"_a = nb::none(), "enable_gqa"_a = false,
        "dropout_seed"_a = 0,
        nb::sig("def scaled_dot_product_attention_backward(grad_output: SupportsArray, query: "
                "Array, key: SupportsArray, value: SupportsArray, output: SupportsArray, row_max: "
                "SupportsArray, row_sum: SupportsArray, attn_mask: SupportsArray | None = None, "
                "dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, "
                "enable_gqa: bool = False, dropout_seed: int = 0) -> tuple[Array, Array, Array, "
                "Array | None]"),
        kBackwardDoc);

  nb::class_<AttentionPlan>(m, "AttentionPlan",
                            "Which kernel a call runs, and what it takes: see explain_attention.")
      .def_ro("kernel", &AttentionPlan::kernel)
      .def_ro("reason", &AttentionPlan::reason, "Why this kernel, in a sentence.")
      .def_ro("n_tasks", &AttentionPlan::n_tasks, "What threads share.")
      .def_ro("n_threads", &AttentionPlan::n_threads, "Threads that take part.")
      .def_ro("flops", &AttentionPlan::flops)
      .def_ro("bytes", &AttentionPlan::bytes, "Of inputs, masks and output, each element once.")
      .def_ro("scratch_bytes", &AttentionPlan::scratch_bytes,
              "Working memory of all threads together.")
      .def("__repr__", &plan_text);

  m.def("explain_attention", &explain, "query"_a, "key"_a, "value"_a, "attn_mask"_a = nb::none(),
        "is_causal"_a = false, "enable_gqa"_a = false,
        nb::sig("def explain_attention(query: SupportsArray, key: SupportsArray, value: "
                "SupportsArray, attn_mask: SupportsArray | None = None, is_causal: bool = False, "
                "enable_gqa: bool = False) -> AttentionPlan"),
        "Which kernel scaled_dot_product_attention would run, why, and what it would take.");
}

}  // namespace headwise::python
