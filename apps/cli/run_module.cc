// `headwise run`: MultiheadAttention with tables from a file, or drawn as torch draws them.
#include "cli/run.h"
#include "cli/tensor_args.h"
#include "headwise/multihead_attention.h"
#include "headwise/random.h"

namespace headwise::cli {
namespace {

// A file holds the tables; what it cannot say comes from the command line.
MultiheadAttention load(const RunOptions& options, DType dtype) {
  MultiheadAttention loaded =
      MultiheadAttention::load(options.weights, options.module.num_heads, options.prefix);
  MultiheadAttentionOptions wanted = loaded.options();
  wanted.dropout = options.module.dropout;
  wanted.add_zero_attn = options.module.add_zero_attn;
  wanted.batch_first = options.module.batch_first;
  wanted.dtype = dtype;
  Generator unused(0);
  MultiheadAttention module(wanted, unused);
  module.load_state_dict(loaded.parameters());
  return module;
}

MultiheadAttention construct(const RunOptions& options, DType dtype) {
  if (options.module.embed_dim == 0)
    throw UsageError("found neither --weights nor --embed-dim, expected one (or --sdpa)");
  MultiheadAttentionOptions wanted = options.module;
  wanted.dtype = dtype;
  wanted.bias = !options.no_bias && !options.fused;
  if (options.fused) wanted.names = MultiheadAttentionOptions::Names::fused;
  Generator generator(options.seed);
  return from_command_line([&] { return MultiheadAttention(wanted, generator); });
}

std::optional<Mask> load_mask(const RunOptions& options, const std::string& name,
                              const std::string& text, DType dtype,
                              std::optional<InputTensor>& file) {
  if (text.empty()) return std::nullopt;
  file.emplace(name, text);
  file->convert_mask_to(dtype);
  return make_mask(options, file->view(), false);
}

}  // namespace

RunResult run_module(const RunOptions& options) {
  if (options.module.num_heads == 0)
    throw UsageError("--num-heads is missing: neither weights nor inputs say it");
  InputTensor query("query", options.query);
  const DType dtype = compute_dtype(options, query.view().dtype);
  query.convert_to(dtype);
  std::optional<InputTensor> key, value;
  if (!options.key.empty()) key.emplace("key", options.key).convert_to(dtype);
  if (!options.value.empty()) value.emplace("value", options.value).convert_to(dtype);
  const ConstTensorView& k = key ? key->view() : query.view();
  const ConstTensorView& v = value ? value->view() : k;

  MultiheadAttention module =
      options.weights.empty() ? construct(options, dtype) : load(options, dtype);
  module.train(options.train);

  ForwardOptions forward;
  std::optional<InputTensor> attn_mask, key_padding_mask;
  forward.attn_mask = load_mask(options, "attn_mask", options.attn_mask, dtype, attn_mask);
  forward.key_padding_mask =
      load_mask(options, "key_padding_mask", options.key_padding_mask, dtype, key_padding_mask);
  forward.is_causal = options.causal;
  forward.strict = options.strict;
  forward.need_weights = options.wants_weights();
  forward.average_attn_weights = !options.per_head;
  forward.dropout_seed = options.seed;
  ForwardResult result = module.forward(query.view(), k, v, forward);
  if (!options.save_module.empty()) module.save(options.save_module);
  return {std::move(result.output), std::move(result.weights)};
}

}  // namespace headwise::cli
