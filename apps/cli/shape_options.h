// A call of scaled_dot_product_attention given by its sizes: for verbs that need no data of the
// user's.
#pragma once

#include <cstddef>
#include <string>

#include "headwise/attention.h"
#include "headwise/dtype.h"
#include "headwise/tensor.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace headwise::cli {

struct ShapeOptions {
  std::string text;          // B,h,T_q,T_k,d_head[,d_v]
  std::size_t kv_heads = 0;  // 0: as many as h
  std::string dtype = "f32";
  bool causal = false, bottom_right = false;
};

// `name` takes the shape; --kv-heads, --dtype, --causal and --bottom-right need it.
CLI::Option* add_shape_options(CLI::App& verb, const char* name, const char* text,
                               ShapeOptions& options);

struct AttentionShape {
  DType dtype;
  Shape q, k, v;
  AttentionOptions options;
};
AttentionShape attention_shape(const ShapeOptions& options);  // throws UsageError

}  // namespace headwise::cli
