// How `headwise see` tells what it found: for people, for programs, and into a file.
#pragma once

#include <cstddef>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "cli/head_stats.h"
#include "cli/heat_map.h"
#include "encoder/encoder.h"
#include "encoder/tokenizer.h"

namespace headwise::cli {

struct SeeResult {
  encoder::EncoderConfig config;
  std::size_t parameter_count = 0;
  encoder::TokenizedText text;
  encoder::EncoderOutput output;
  std::vector<HeadStats> stats;     // [n_layers * n_heads]
  std::size_t layer = 0, head = 0;  // the head to draw
  bool chosen = false;              // by the caller; else because it is the most telling one

  std::size_t n_tokens() const { return text.ids.size(); }
  std::span<const float> weights(std::size_t layer_at, std::size_t head_at) const;  // [T, T]
};

// Fills stats, layer and head from the rest; a layer or head that is given restricts the choice.
void summarize(SeeResult& result, std::optional<std::size_t> layer,
               std::optional<std::size_t> head);

void print_report(std::ostream& out, const SeeResult& result, const HeatMapOptions& options);
void print_report_json(std::ostream& out, const SeeResult& result);

// "attention" [n_layers, n_heads, T, T], "hidden_states" [n_layers + 1, T, d_model],
// "sentence_embedding" [d_model] and "ids" [T]; the tokens as a JSON array, in the metadata of
// .safetensors ("tokens") or as the UTF-8 bytes of an array "tokens" of .npz. The path has to end
// with one of the two, see check_save_path.
void save_result(const std::string& path, const SeeResult& result);
void check_save_path(const std::string& path);  // throws UsageError

}  // namespace headwise::cli
