#include "cli/shape_options.h"

#include <charconv>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/common.h"

namespace headwise::cli {
namespace {

constexpr std::size_t kMaxSize = std::size_t{1} << 24;
constexpr const char* kForm = "B,h,T_q,T_k,d_head or B,h,T_q,T_k,d_head,d_v";

std::vector<std::size_t> sizes_of(const std::string& text) {
  std::vector<std::size_t> sizes;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    std::size_t size = 0;
    const auto result = std::from_chars(at, end, size);
    if (result.ec != std::errc{} || size > kMaxSize) return {};
    sizes.push_back(size);
    if (result.ptr == end) return sizes;
    if (*result.ptr != ',') return {};
    at = result.ptr + 1;
  }
}

std::string shape_problem(const std::string& text) {
  const std::size_t n = sizes_of(text).size();
  if (n == 5 || n == 6) return {};
  return "found \"" + text + "\", expected " + kForm + ", each a whole number up to " +
         std::to_string(kMaxSize);
}

}  // namespace

CLI::Option* add_shape_options(CLI::App& verb, const char* name, const char* text,
                               ShapeOptions& o) {
  const char* group = "Shape";
  CLI::Option* shape = verb.add_option(name, o.text, text);
  shape->check(CLI::Validator(shape_problem, ""))->type_name("B,h,T_q,T_k,d")->group(group);
  auto* kv_heads = verb.add_option("--kv-heads", o.kv_heads, "Key and value heads (default: h)");
  kv_heads->transform(whole_number(1, kMaxSize))->type_name("N");
  auto* dtype = verb.add_option("--dtype", o.dtype, "f32, f64, bf16 or f16 (f32)");
  dtype->check(dtype_name())->type_name("NAME");
  auto* causal = verb.add_flag("--causal", o.causal, "Query t sees keys 0 to t");
  auto* bottom_right = verb.add_flag("--bottom-right", o.bottom_right,
                                     "with --causal: the last query sees all keys");
  bottom_right->needs(causal);
  for (CLI::Option* option : {kv_heads, dtype, causal, bottom_right})
    option->needs(shape)->group(group);
  return shape;
}

AttentionShape attention_shape(const ShapeOptions& o) {
  const std::vector<std::size_t> n = sizes_of(o.text);
  const std::size_t kv_heads = o.kv_heads == 0 ? n[1] : o.kv_heads;
  AttentionShape shape;
  shape.dtype = dtype_from_name(o.dtype);
  shape.q = {n[0], n[1], n[2], n[4]};
  shape.k = {n[0], kv_heads, n[3], n[4]};
  shape.v = {n[0], kv_heads, n[3], n.size() == 6 ? n[5] : n[4]};
  if (o.causal)
    shape.options.causal = o.bottom_right ? CausalAlign::bottom_right : CausalAlign::top_left;
  return shape;
}

}  // namespace headwise::cli
