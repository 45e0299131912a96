// `headwise run`: attention on tensors from files, with every option of the library.
#pragma once

#include <optional>
#include <string>

#include "cli/common.h"
#include "headwise/attention.h"
#include "headwise/multihead_attention.h"
#include "headwise/tensor.h"

namespace headwise::cli {

struct RunOptions {
  std::string query, key, value;
  std::string attn_mask, key_padding_mask;
  bool keep = false, ignore = false;  // what true means in a boolean mask; else as in torch
  bool causal = false, bottom_right = false;
  bool need_weights = false, no_weights = false;  // neither: the module returns them, SDPA doesn't
  bool average = false, per_head = false;         // neither: the module averages, SDPA doesn't
  std::string dtype;                              // "": the query's
  std::uint64_t seed = 0;
  std::string out, weights_out;
  RuntimeOptions runtime;
  bool json = false;

  // Without projections.
  bool sdpa = false, gqa = false;
  std::optional<double> scale;

  // The module: from a file or drawn.
  std::string weights, prefix, save_module;
  MultiheadAttentionOptions module;
  bool no_bias = false, fused = false, train = false, strict = false;

  bool wants_weights() const {
    return !no_weights && (!sdpa || need_weights || average || per_head);
  }
};

struct RunResult {
  Tensor output;
  std::optional<Tensor> weights;
};

RunResult run_sdpa(const RunOptions& options);    // run_sdpa.cc
RunResult run_module(const RunOptions& options);  // run_module.cc

DType compute_dtype(const RunOptions& options, DType of_query);
// What a mask from the command line means; `true_keeps` is torch's meaning of true at this place.
Mask make_mask(const RunOptions& options, const ConstTensorView& view, bool true_keeps);

void add_run(CLI::App& program, Action& action);

}  // namespace headwise::cli
