#include "encoder/config.h"

#include "encoder/json_object.h"

namespace headwise::encoder {
namespace {

// A setting that has one value here; a model that wants another one would come out wrong.
void expect_text(const JsonObject& json, const std::string& field, const std::string& expected) {
  const std::string found = json.text(field, expected);
  if (found != expected) refuse_field(field, '"' + found + '"', '"' + expected + '"');
}

}  // namespace

EncoderConfig parse_encoder_config(std::string_view text) {
  const JsonObject json = JsonObject::parse(text);
  expect_text(json, "model_type", "bert");
  expect_text(json, "hidden_act", "gelu");
  expect_text(json, "position_embedding_type", "absolute");
  if (json.flag("is_decoder", false)) refuse_field("is_decoder", "true", "an encoder: false");

  EncoderConfig config;
  config.vocab_size = json.positive("vocab_size");
  config.d_model = json.positive("hidden_size");
  config.n_layers = json.positive("num_hidden_layers");
  config.n_heads = json.positive("num_attention_heads");
  config.d_feed = json.positive("intermediate_size");
  config.max_positions = json.positive("max_position_embeddings");
  config.n_types = json.positive("type_vocab_size", 2);
  config.layer_norm_eps = json.positive_real("layer_norm_eps", 1e-12);
  if (config.d_model % config.n_heads != 0)
    refuse_field("num_attention_heads", std::to_string(config.n_heads),
                 "a divisor of hidden_size " + std::to_string(config.d_model));
  if (config.max_positions < 2)
    refuse_field("max_position_embeddings", std::to_string(config.max_positions),
                 "2 or more: every text has a first and a last token");
  return config;
}

TokenizerOptions parse_tokenizer_config(std::string_view text) {
  const JsonObject json = JsonObject::parse(text);
  TokenizerOptions options;
  options.lower_case = json.flag("do_lower_case", options.lower_case);
  options.strip_accents = json.flag("strip_accents", options.lower_case);
  options.split_cjk = json.flag("tokenize_chinese_chars", options.split_cjk);
  options.unknown = json.text("unk_token", options.unknown);
  options.first = json.text("cls_token", options.first);
  options.last = json.text("sep_token", options.last);
  options.padding = json.text("pad_token", options.padding);
  options.mask = json.text("mask_token", options.mask);
  return options;
}

}  // namespace headwise::encoder
