#include "headwise/attention.h"
#include "headwise/plan.h"
#include "parity/run.h"
#include "support/weight_rounding.h"

namespace headwise::parity {
namespace {

std::optional<CausalAlign> causal_of(const Case& c) {
  const std::string causal = c.text("causal", "none");
  if (causal == "top_left") return CausalAlign::top_left;
  if (causal == "bottom_right") return CausalAlign::bottom_right;
  return std::nullopt;
}

// What a call can return beside its output: where the options hold it, and how its errors count.
struct Extra {
  const char* name;
  TensorView AttentionExtras::*view;
  Scale scale;
  bool wide;  // f32 beside 16 bits
};
constexpr Extra kExtras[] = {
    {"row_max", &AttentionExtras::row_max, Scale::unit, true},
    {"row_sum", &AttentionExtras::row_sum, Scale::unit, true},
    {"log_sum_exp", &AttentionExtras::log_sum_exp, Scale::unit, true},
    {"weights", &AttentionExtras::weights, Scale::row, false},
    {"average_weights", &AttentionExtras::average_weights, Scale::row, false},
};

}  // namespace

Difference run_sdpa(const Case& c) {
  const Placed q = c.placed("q"), k = c.placed("k"), v = c.placed("v");
  AttentionOptions options;
  options.scale = c.real("scale");
  options.causal = causal_of(c);
  options.enable_gqa = c.flag("gqa");
  Placed mask, second;
  if (c.has("mask")) {
    mask = c.placed("mask");
    options.mask = mask_of(c, "mask", mask.view);
  }
  if (c.has("second_mask")) {
    second = c.placed("second_mask");
    options.second_mask = mask_of(c, "second_mask", second.view);
  }

  AttentionExtras extras;
  std::vector<Tensor> kept;
  kept.reserve(std::size(kExtras));
  for (const Extra& extra : kExtras) {
    const std::string name = std::string("expected.") + extra.name;
    if (!c.has(name)) continue;
    const bool f32 = extra.wide && c.dtype() != DType::f64;
    kept.emplace_back(f32 ? DType::f32 : c.dtype(), c.tensor(name).shape);
    extras.*extra.view = kept.back().view();
  }
  Tensor output(c.dtype(), attention_output_shape(q.view, k.view, v.view, options));
  scaled_dot_product_attention(q.view, k.view, v.view, options, output.view(), extras);

  const AttentionPlan plan = explain_attention(q.view, k.view, v.view, options);
  Difference d =
      compare("output", output, c.tensor("expected.output"), Scale::given, c.tensor("scale.output"),
              test::weight_rounding(std::string_view(plan.kernel)));
  const double of_sums = test::sum_rounding(std::string_view(plan.kernel));
  for (const Extra& extra : kExtras)
    if (const std::string name = std::string("expected.") + extra.name; c.has(name))
      d.add(compare(extra.name, extras.*extra.view, c.tensor(name), extra.scale, {}, of_sums));
  return d;
}

}  // namespace headwise::parity
