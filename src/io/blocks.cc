// Attention blocks, found by the names of their parameters. A block is there when its first weight
// and its output projection are; whether the rest fits is then said in its `problem`.
#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/checked.h"
#include "headwise/io.h"
#include "io/refusal.h"

namespace headwise {
namespace {

using io::Refusal;
using Form = AttentionBlock::Form;
using Dims = std::vector<std::uint64_t>;

struct FormNames {
  Form form;
  std::vector<std::string_view> weights;  // one packed, or query, key, value
  std::vector<std::string_view> biases;   // all or none of them, with output_bias
  std::string_view output_weight, output_bias;
};

const std::array<FormNames, 4>& all_forms() {
  static const std::array<FormNames, 4> kForms = {{
      {Form::torch_packed,
       {"in_proj_weight"},
       {"in_proj_bias"},
       "out_proj.weight",
       "out_proj.bias"},
      {Form::torch_separate,
       {"q_proj_weight", "k_proj_weight", "v_proj_weight"},
       {"in_proj_bias"},
       "out_proj.weight",
       "out_proj.bias"},
      {Form::fused, {"qkv_proj.weight"}, {"qkv_proj.bias"}, "out_proj.weight", "out_proj.bias"},
      {Form::bert,
       {"self.query.weight", "self.key.weight", "self.value.weight"},
       {"self.query.bias", "self.key.bias", "self.value.bias"},
       "output.dense.weight",
       "output.dense.bias"},
  }};
  return kForms;
}

std::string to_text(const Dims& shape) {
  std::string text = "shape (";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

// a + 2 b; a number that no shape has when it overflows.
std::uint64_t packed_rows(std::uint64_t a, std::uint64_t b) {
  const auto twice = core::checked_mul(b, 2);
  const auto sum = twice ? core::checked_add(a, *twice) : std::nullopt;
  return sum.value_or(std::numeric_limits<std::uint64_t>::max());
}

bool divides(std::uint64_t part, std::uint64_t whole) { return part > 0 && whole % part == 0; }

class BlockReader {
 public:
  BlockReader(const TensorFile& file, const FormNames& names, std::string prefix)
      : file_(file), names_(names) {
    block_.prefix = std::move(prefix);
    block_.form = names.form;
  }

  AttentionBlock read() {
    try {
      collect();
      size();
      check();
    } catch (const Refusal& refusal) {
      block_.problem = "tensor " + printable(refusal.tensor()) + ": found " +
                       printable(refusal.found(), 120) + ", expected " +
                       printable(refusal.expected(), 120);
    }
    return std::move(block_);
  }

 private:
  bool has(std::string_view name) const { return file_.find(full(name)) != nullptr; }
  std::string full(std::string_view name) const { return block_.prefix + std::string(name); }

  const TensorInfo& take(std::string_view name) {
    const TensorInfo* info = file_.find(full(name));
    if (info == nullptr) throw Refusal("nothing", "it beside the block's others", full(name));
    return *info;
  }

  void add(std::string_view name) {
    const TensorInfo& info = take(name);
    block_.tensors.push_back(info.name);
    std::optional<std::uint64_t> count = 1;
    for (const std::uint64_t n : info.shape)
      count = count ? core::checked_mul(*count, n) : std::nullopt;
    count = count ? core::checked_add(block_.parameter_count, *count) : std::nullopt;
    block_.parameter_count = count.value_or(std::numeric_limits<std::uint64_t>::max());
  }

  // Which parameters there are, in torch's order.
  void collect() {
    block_.bias =
        has(names_.output_bias) || std::any_of(names_.biases.begin(), names_.biases.end(),
                                               [&](std::string_view name) { return has(name); });
    const bool is_torch = names_.form == Form::torch_packed || names_.form == Form::torch_separate;
    block_.bias_kv = is_torch && (has("bias_k") || has("bias_v"));
    for (const std::string_view name : names_.weights) add(name);
    if (block_.bias)
      for (const std::string_view name : names_.biases) add(name);
    if (block_.bias_kv) add("bias_k"), add("bias_v");
    add(names_.output_weight);
    if (block_.bias) add(names_.output_bias);
  }

  const Dims& matrix(std::string_view name) {
    const TensorInfo& info = take(name);
    if (info.shape.size() != 2) throw Refusal(to_text(info.shape), "2 dims", info.name);
    return info.shape;
  }

  // The block's sizes, from its weights' shapes. Where those contradict each other: torch's sizes
  // for the width of the input, so that check() names the tensor that stands out.
  void size() {
    const Dims& first = matrix(names_.weights[0]);
    const Dims& output = matrix(names_.output_weight);
    block_.embed_dim = block_.kdim = block_.vdim = first[1];
    if (is_packed()) {
      const std::uint64_t query = output[1];
      const std::uint64_t rest = first[0] > query ? first[0] - query : 0;
      const bool fits = rest % 2 == 0 && divides(rest / 2, query);
      block_.query_width = fits ? query : block_.embed_dim;
      block_.kv_width = fits ? rest / 2 : block_.embed_dim;
    } else {
      const Dims &key = matrix(names_.weights[1]), &value = matrix(names_.weights[2]);
      block_.query_width = first[0];
      block_.kv_width = divides(key[0], first[0]) ? key[0] : first[0];
      block_.kdim = key[1];
      block_.vdim = value[1];
    }
    for (const std::uint64_t n : {block_.embed_dim, block_.query_width, block_.kv_width})
      if (n == 0) throw Refusal(to_text(first), "sizes above 0", full(names_.weights[0]));
  }

  bool is_packed() const { return names_.weights.size() == 1; }

  void expect(std::string_view name, const Dims& expected) {
    const TensorInfo& info = take(name);
    if (info.shape != expected) throw Refusal(to_text(info.shape), to_text(expected), info.name);
    if (!info.type || !is_floating(*info.type))
      throw Refusal("dtype " + info.dtype, "a floating dtype that headwise computes with",
                    info.name);
  }

  void check() {
    const std::uint64_t d_model = block_.embed_dim, q = block_.query_width, kv = block_.kv_width;
    const std::uint64_t rows = packed_rows(q, kv);
    if (is_packed()) {
      expect(names_.weights[0], {rows, d_model});
    } else {
      expect(names_.weights[0], {q, d_model});
      expect(names_.weights[1], {kv, block_.kdim});
      expect(names_.weights[2], {kv, block_.vdim});
    }
    expect(names_.output_weight, {d_model, q});
    if (block_.bias && names_.biases.size() == 1) expect(names_.biases[0], {rows});
    if (block_.bias && names_.biases.size() == 3) {
      expect(names_.biases[0], {q});
      expect(names_.biases[1], {kv});
      expect(names_.biases[2], {kv});
    }
    if (block_.bias) expect(names_.output_bias, {d_model});
    if (block_.bias_kv) {
      expect("bias_k", {1, 1, kv});
      expect("bias_v", {1, 1, kv});
    }
  }

  const TensorFile& file_;
  const FormNames& names_;
  AttentionBlock block_;
};

// "encoder.layer.2." before "encoder.layer.10.".
bool comes_before(std::string_view a, std::string_view b) {
  const auto number = [](std::string_view text) {
    std::string_view digits = text.substr(0, text.find_first_not_of("0123456789"));
    digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
    return digits;
  };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const std::string_view x = number(a.substr(i)), y = number(b.substr(j));
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      while (i < a.size() && is_digit(a[i])) ++i;
      while (j < b.size() && is_digit(b[j])) ++j;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
    }
  }
  const bool a_ends = i == a.size(), b_ends = j == b.size();
  return a_ends != b_ends ? a_ends : a < b;  // leading zeros decide last
}

}  // namespace

std::vector<AttentionBlock> find_attention_blocks(const TensorFile& file) {
  std::vector<AttentionBlock> blocks;
  for (const TensorInfo& tensor : file.tensors()) {
    for (const FormNames& names : all_forms()) {
      const std::string_view key = names.weights[0], name = tensor.name;
      if (!name.ends_with(key)) continue;
      std::string prefix(name.substr(0, name.size() - key.size()));
      if (!prefix.empty() && prefix.back() != '.') continue;
      if (file.find(prefix + std::string(names.output_weight)) == nullptr) continue;
      blocks.push_back(BlockReader(file, names, std::move(prefix)).read());
    }
  }
  std::sort(blocks.begin(), blocks.end(), [](const AttentionBlock& a, const AttentionBlock& b) {
    return a.prefix != b.prefix ? comes_before(a.prefix, b.prefix) : a.form < b.form;
  });
  return blocks;
}

}  // namespace headwise
