// What the readers of config.json and tokenizer_config.json take and refuse, rule by rule.
#include "encoder/config.h"

#include <string>

#include "gtest/gtest.h"
#include "io/refusal.h"

namespace headwise::encoder {
namespace {

// A valid config.json with one field changed (a null pointer: left out) or added.
std::string config_with(const std::string& field = "", const char* value = nullptr) {
  const std::pair<const char*, const char*> fields[] = {
      {"vocab_size", "30"},        {"hidden_size", "8"},
      {"num_hidden_layers", "2"},  {"num_attention_heads", "4"},
      {"intermediate_size", "16"}, {"max_position_embeddings", "512"}};
  std::string json;
  bool used = false;
  for (const auto& [name, usual] : fields) {
    const bool changed = field == name;
    used = used || changed;
    if (changed && value == nullptr) continue;
    json += std::string(json.empty() ? "{\"" : ", \"") + name + "\": " + (changed ? value : usual);
  }
  if (!used && value != nullptr) json += ", \"" + field + "\": " + value;
  return json + "}";
}

void expect_refused(const std::string& json, const std::string& found) {
  try {
    parse_encoder_config(json);
    ADD_FAILURE() << json << " is taken";
  } catch (const io::Refusal& refusal) {
    EXPECT_NE(refusal.found().find(found), std::string::npos) << refusal.found();
  }
}

TEST(Config, TakesWhatIsNeededAndIgnoresTheRest) {
  const EncoderConfig config = parse_encoder_config(
      config_with("later_field", R"({"a": [1, {"hidden_size": "x"}], "b": null})"));
  EXPECT_EQ(config.vocab_size, 30u);
  EXPECT_EQ(config.d_model, 8u);
  EXPECT_EQ(config.n_layers, 2u);
  EXPECT_EQ(config.n_heads, 4u);
  EXPECT_EQ(config.d_feed, 16u);
  EXPECT_EQ(config.max_positions, 512u);
  EXPECT_EQ(config.n_types, 2u);
  EXPECT_EQ(config.layer_norm_eps, 1e-12);
  EXPECT_EQ(parse_encoder_config(config_with("layer_norm_eps", "1e-5")).layer_norm_eps, 1e-5);
}

TEST(Config, RefusesSizesThatAreNone) {
  for (const char* field : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                            "intermediate_size", "max_position_embeddings", "type_vocab_size"}) {
    for (const char* value : {"0", "-3", "1.5", "8.0", "1e30", "\"8\"", "true", "null", "[8]", "{}",
                              "18446744073709551616"})
      expect_refused(config_with(field, value), field);
  }
  expect_refused(config_with("hidden_size"), "hidden_size nothing");
  expect_refused(config_with("num_attention_heads", "3"), "num_attention_heads 3");
  expect_refused(config_with("max_position_embeddings", "1"), "max_position_embeddings 1");
}

TEST(Config, RefusesModelsThatWouldComeOutWrong) {
  expect_refused(config_with("hidden_act", "\"relu\""), "hidden_act \"relu\"");
  expect_refused(config_with("hidden_act", "\"gelu_new\""), "hidden_act \"gelu_new\"");
  expect_refused(config_with("hidden_act", "3"), "hidden_act 3");
  expect_refused(config_with("position_embedding_type", "\"relative_key\""), "relative_key");
  expect_refused(config_with("model_type", "\"roberta\""), "roberta");
  expect_refused(config_with("is_decoder", "true"), "is_decoder");
  for (const char* eps : {"0", "-1e-12", "\"1e-12\"", "null", "true", "1e999"})
    expect_refused(config_with("layer_norm_eps", eps), eps[1] == 'e' ? "" : "layer_norm_eps");
  EXPECT_NO_THROW(parse_encoder_config(config_with("hidden_act", "\"gelu\"")));
  EXPECT_NO_THROW(parse_encoder_config(config_with("position_embedding_type", "\"absolute\"")));
  EXPECT_NO_THROW(parse_encoder_config(config_with("is_decoder", "false")));
}

TEST(Config, RefusesWhatIsNoJsonObject) {
  for (const char* json : {"", "{", "[]", "3", "null", "\"x\"", "{\"a\": }", "{\"a\": \"\xFF\"}"})
    expect_refused(json, "");
  expect_refused(R"({"hidden_size": 8, "hidden_size": 8})", "hidden_size");
}

TEST(Config, NestingOf32LevelsIsTheMost) {
  const auto nested = [](std::size_t levels) {  // inside the object, which is the first
    return std::string(levels - 1, '[') + std::string(levels - 1, ']');
  };
  EXPECT_NO_THROW(parse_encoder_config(config_with("deep", nested(32).c_str())));
  expect_refused(config_with("deep", nested(33).c_str()), "32");
  expect_refused(std::string(200000, '['), "");
  expect_refused(config_with("deep", std::string(200000, '[').c_str()), "32");
}

TEST(TokenizerConfig, ReadsFlagsAndTokens) {
  const TokenizerOptions usual = parse_tokenizer_config("{}");
  EXPECT_TRUE(usual.lower_case && usual.strip_accents && usual.split_cjk);
  EXPECT_EQ(usual.first, "[CLS]");
  const TokenizerOptions cased = parse_tokenizer_config(R"({"do_lower_case": false,
      "strip_accents": null, "tokenize_chinese_chars": false, "unk_token": "<unk>",
      "cls_token": {"__type": "AddedToken", "content": "<s>", "lstrip": false},
      "mask_token": null, "model_max_length": 1000000000000000019884624838656})");
  EXPECT_FALSE(cased.lower_case || cased.strip_accents || cased.split_cjk);
  EXPECT_EQ(cased.unknown, "<unk>");
  EXPECT_EQ(cased.first, "<s>");
  EXPECT_EQ(cased.mask, "[MASK]");
  EXPECT_TRUE(
      parse_tokenizer_config(R"({"do_lower_case": false, "strip_accents": true})").strip_accents);
}

TEST(TokenizerConfig, RefusesWrongTypes) {
  for (const char* json :
       {R"({"do_lower_case": 1})", R"({"strip_accents": "no"})", R"({"cls_token": 5})",
        R"({"cls_token": {}})", R"({"cls_token": ["content", "x"]})", R"({"sep_token": true})"})
    EXPECT_THROW(parse_tokenizer_config(json), io::Refusal) << json;
}

}  // namespace
}  // namespace headwise::encoder
