// What config.json and tokenizer_config.json of a BERT model folder say.
#pragma once

#include <cstddef>
#include <string_view>

#include "encoder/tokenizer.h"

namespace headwise::encoder {

inline constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;

// A BERT encoder with exact GELU and learned absolute positions: the only kind computed here.
struct EncoderConfig {
  std::size_t vocab_size = 0;
  std::size_t d_model = 0;        // hidden_size
  std::size_t n_layers = 0;       // num_hidden_layers
  std::size_t n_heads = 0;        // num_attention_heads, divides d_model
  std::size_t d_feed = 0;         // intermediate_size
  std::size_t max_positions = 0;  // max_position_embeddings
  std::size_t n_types = 0;        // type_vocab_size
  double layer_norm_eps = 0;
};

// Throw io::Refusal naming the field, what was found and what was expected.
EncoderConfig parse_encoder_config(std::string_view json);
TokenizerOptions parse_tokenizer_config(std::string_view json);

}  // namespace headwise::encoder
