#include "headwise/attention.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <utility>

#include "arrays.h"
#include "bindings.h"
#include "errors.h"
#include "gil.h"
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

nb::object attention(nb::handle query, nb::handle key, nb::handle value, nb::handle attn_mask,
                     nb::handle dropout_p, bool is_causal, std::optional<double> scale,
                     bool enable_gqa) {
  Call call(query, key, value, attn_mask);
  call.options.dropout_p = probability_argument("dropout_p", dropout_p);
  if (call.options.dropout_p > 0.0) call.options.dropout_seed = default_generator().next_u64();
  if (is_causal) call.options.causal = CausalAlign::top_left;
  call.options.scale = scale;
  call.options.enable_gqa = enable_gqa;
  Tensor o = with_python_names([&] {
    const ReleaseGil unlocked;
    return scaled_dot_product_attention(call.inputs.q(), call.inputs.k(), call.inputs.v(),
                                        call.options);
  });
  return array_like(query, std::move(o));
}

AttentionPlan explain(nb::handle query, nb::handle key, nb::handle value, nb::handle attn_mask,
                      bool is_causal, bool enable_gqa) {
  Call call(query, key, value, attn_mask);
  if (is_causal) call.options.causal = CausalAlign::top_left;
  call.options.enable_gqa = enable_gqa;
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
