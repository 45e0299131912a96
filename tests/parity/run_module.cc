#include <algorithm>
#include <stdexcept>

#include "headwise/multihead_attention.h"
#include "parity/run.h"
#include "support/weight_rounding.h"

namespace headwise::parity {
namespace {

MultiheadAttentionOptions options_of(const Case& c) {
  MultiheadAttentionOptions o;
  o.embed_dim = c.size("embed_dim").value();
  o.num_heads = c.size("num_heads").value();
  o.dropout = c.real("dropout").value_or(0.0);
  o.bias = c.flag("bias");
  o.add_bias_kv = c.flag("add_bias_kv");
  o.add_zero_attn = c.flag("add_zero_attn");
  o.kdim = c.size("kdim");
  o.vdim = c.size("vdim");
  o.batch_first = c.flag("batch_first");
  o.dtype = c.dtype();
  o.num_kv_heads = c.size("num_kv_heads");
  o.head_dim = c.size("head_dim");
  if (c.text("names") == "fused") o.names = MultiheadAttentionOptions::Names::fused;
  return o;
}

std::string names_of(const std::vector<NamedView>& parameters) {
  std::string names;
  for (const NamedView& p : parameters) names += (names.empty() ? "" : ",") + p.name;
  return names;
}

}  // namespace

Difference run_module(const Case& c) {
  MultiheadAttention module(options_of(c));
  module.load_state_dict(c.state());
  module.train(c.flag("train"));
  const Placed query = c.placed("query");
  const bool same = c.flag("one_tensor");
  const Placed key = same ? Placed{} : c.placed("key"), value = same ? Placed{} : c.placed("value");
  ForwardOptions options;
  options.need_weights = c.flag("need_weights");
  options.average_attn_weights = c.flag("average");
  options.is_causal = c.flag("is_causal");
  Placed padding, mask;
  if (c.has("key_padding_mask")) {
    padding = c.placed("key_padding_mask");
    options.key_padding_mask = mask_of(c, "key_padding_mask", padding.view);
  }
  if (c.has("attn_mask")) {
    mask = c.placed("attn_mask");
    options.attn_mask = mask_of(c, "attn_mask", mask.view);
  }
  const ForwardResult result = module.forward(query.view, same ? query.view : key.view,
                                              same ? query.view : value.view, options);
  if (result.weights.has_value() != options.need_weights)
    throw std::runtime_error("weights are there, or not, against need_weights");
  Difference d = compare(
      "output", result.output, c.tensor("expected.output"), Scale::given, c.tensor("scale.output"),
      std::max(test::weight_rounding(c.dtype()), test::module_rounding(c.dtype())));
  if (result.weights)
    d.add(compare("weights", *result.weights, c.tensor("expected.weights"), Scale::row, {},
                  test::module_rounding(c.dtype())));
  return d;
}

Difference run_init(const Case& c) {
  Generator generator(std::stoull(c.text("seed")));
  const MultiheadAttention module(options_of(c), generator);
  const std::vector<NamedView> parameters = module.parameters();
  if (names_of(parameters) != c.text("order"))
    throw std::runtime_error("parameters " + names_of(parameters) + ", expected " +
                             c.text("order"));
  Difference d;
  for (const NamedView& p : parameters) {
    const bool normal = p.name == "bias_k" || p.name == "bias_v";
    d.add(compare_steps(p.name, p.view, c.tensor("state." + p.name), normal ? 2 : 0));
  }
  if (generator.next_u32() % (1u << 24) != c.size("next24"))
    throw std::runtime_error("construction leaves the generator out of step");
  return d;
}

}  // namespace headwise::parity
