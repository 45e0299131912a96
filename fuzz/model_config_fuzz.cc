// The readers of config.json, tokenizer_config.json and vocab.txt.
#include <string_view>

#include "encoder/config.h"
#include "encoder/vocabulary.h"
#include "support.h"

using namespace headwise;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::try_parse([&] {
    const encoder::EncoderConfig config = encoder::parse_encoder_config(text);
    fuzz::require(config.n_heads > 0 && config.d_model % config.n_heads == 0);
    fuzz::require(config.max_positions >= 2 && config.layer_norm_eps > 0);
  });
  fuzz::try_parse([&] { encoder::parse_tokenizer_config(text); });
  fuzz::try_parse([&] {
    const encoder::Vocabulary words = encoder::Vocabulary::parse(text, size);
    fuzz::require(words.size() <= size);
    for (std::uint32_t id = 0; id < words.size(); ++id)
      fuzz::require(words.find(words.word(id)).has_value());
  });
  return 0;
}
