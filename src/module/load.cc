// Modules from and to .safetensors files. Whatever names a file has, its tables end under the names
// of MultiheadAttention::parameters().
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/convert.h"
#include "headwise/io.h"
#include "headwise/multihead_attention.h"
#include "io/refusal.h"
#include "module/state.h"

namespace headwise {
namespace {

using Form = AttentionBlock::Form;
using Names = MultiheadAttentionOptions::Names;

std::string prefixes_of(const std::vector<AttentionBlock>& blocks) {
  if (blocks.empty()) return "no attention block";
  constexpr std::size_t kShown = 5;
  std::string text = std::to_string(blocks.size()) + " attention blocks:";
  for (std::size_t i = 0; i < std::min(blocks.size(), kShown); ++i)
    text += (i > 0 ? ", \"" : " \"") + blocks[i].prefix + "\"";
  return text + (blocks.size() > kShown ? ", ..." : "");
}

AttentionBlock choose_block(const TensorFile& file, const std::string& prefix) {
  const std::vector<AttentionBlock> blocks = find_attention_blocks(file);
  for (const std::string& wanted : {prefix, prefix + "."})
    for (const AttentionBlock& block : blocks)
      if (block.prefix == wanted) return block;
  if (prefix.empty() && blocks.size() == 1) return blocks.front();
  throw io::file_error(file.path(),
                       io::Refusal(prefixes_of(blocks), "a block with prefix \"" + prefix + "\""));
}

// The file says how wide queries and keys are, the caller how many heads share that.
MultiheadAttentionOptions options_of(const AttentionBlock& block, std::size_t num_heads,
                                     DType dtype) {
  MultiheadAttentionOptions options;
  options.embed_dim = block.embed_dim;
  options.num_heads = num_heads;
  if (num_heads == 0 || block.query_width % num_heads != 0)
    core::throw_argument("num_heads", std::to_string(num_heads),
                         "a divisor of " + std::to_string(block.query_width) +
                             ", the width of the query projection");
  const std::size_t d_head = block.query_width / num_heads;
  if (block.kv_width % d_head != 0)
    core::throw_argument("num_heads",
                         std::to_string(num_heads) + " (heads of " + std::to_string(d_head) + ")",
                         "heads that divide " + std::to_string(block.kv_width) +
                             ", the width of the key projection");
  if (block.query_width != block.embed_dim) options.head_dim = d_head;
  if (block.kv_width != block.query_width) options.num_kv_heads = block.kv_width / d_head;
  if (block.kdim != block.embed_dim) options.kdim = block.kdim;
  if (block.vdim != block.embed_dim) options.vdim = block.vdim;
  options.bias = block.bias;
  options.add_bias_kv = block.bias_kv;
  options.dtype = dtype;
  if (block.form == Form::fused && !block.bias) options.names = Names::fused;
  return options;
}

// Tables that a file keeps apart and the module as one, each below the one before.
Tensor stacked(const TensorFile& file, const std::vector<std::string>& names, DType dtype) {
  std::vector<ConstTensorView> parts;
  Shape shape;
  for (const std::string& name : names) {
    parts.push_back(file.view(name));
    if (shape.empty())
      shape = parts.back().shape;
    else
      shape[0] += parts.back().shape[0];
  }
  Tensor all(dtype, shape);
  TensorView target = all.view();
  auto* at = static_cast<std::byte*>(target.data);
  for (const ConstTensorView& part : parts) {
    core::convert(part, TensorView(at, dtype, part.shape));
    at += element_count(part.shape) * size_of(dtype);
  }
  return all;
}

// Which of the file's tensors make up a parameter of the module, by its name there.
std::vector<std::string> sources_of(const AttentionBlock& block, const std::string& parameter) {
  const std::string& prefix = block.prefix;
  if (block.form == Form::bert) {
    const std::string self = prefix + "self.";
    if (parameter == "in_proj_weight")
      return {self + "query.weight", self + "key.weight", self + "value.weight"};
    if (parameter == "in_proj_bias")
      return {self + "query.bias", self + "key.bias", self + "value.bias"};
    if (parameter == "q_proj_weight") return {self + "query.weight"};
    if (parameter == "k_proj_weight") return {self + "key.weight"};
    if (parameter == "v_proj_weight") return {self + "value.weight"};
    if (parameter == "out_proj.weight") return {prefix + "output.dense.weight"};
    return {prefix + "output.dense.bias"};
  }
  if (block.form == Form::fused && parameter == "in_proj_weight")
    return {prefix + "qkv_proj.weight"};
  if (block.form == Form::fused && parameter == "in_proj_bias") return {prefix + "qkv_proj.bias"};
  return {prefix + parameter};
}

}  // namespace

MultiheadAttention MultiheadAttention::load(const std::string& path, std::size_t num_heads,
                                            const std::string& prefix) {
  const TensorFile file = TensorFile::open(path);
  const AttentionBlock block = choose_block(file, prefix);
  if (!block.problem.empty()) throw FileError(printable(path) + ", " + block.problem);
  DType dtype = file.view(block.tensors.front()).dtype;
  MultiheadAttentionOptions options = options_of(block, num_heads, dtype);
  // Tables of bf16 beside biases of f32: what a module with such a weight_dtype saves.
  for (const std::string& name : block.tensors)
    if (dtype == DType::bf16 && file.view(name).dtype == DType::f32) {
      dtype = options.dtype = DType::f32;
      options.weight_dtype = DType::bf16;
    }
  auto state = std::make_unique<State>(options);

  std::vector<Tensor> tables;
  std::vector<NamedView> named;
  for (std::size_t i = 0; i < state->parameters.size(); ++i) {
    const std::string& name = state->parameters.name(i);
    tables.push_back(stacked(file, sources_of(block, name), dtype));
    named.push_back({name, tables.back().view()});
  }
  module::Parameters parameters = state->parameters;
  parameters.set_all(named);
  state->replace(std::move(parameters));
  return MultiheadAttention(std::move(state));
}

void MultiheadAttention::save(const std::string& path) const {
  const std::vector<NamedView> all = parameters();
  save_safetensors(path, all);
}

}  // namespace headwise
