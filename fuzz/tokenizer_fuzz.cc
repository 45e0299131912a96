// Any text through BERT's tokenizer: a few options from the first byte, a vocabulary, then the
// text.
#include <string_view>

#include "encoder/tokenizer.h"
#include "headwise/error.h"
#include "support.h"

using namespace headwise;

namespace {

constexpr std::size_t kMaxWords = 1000;

void check(std::string_view words, std::string_view text, unsigned char flags) {
  encoder::TokenizerOptions options;
  options.lower_case = (flags & 1) != 0;
  options.strip_accents = (flags & 2) != 0;
  options.split_cjk = (flags & 4) != 0;
  const std::size_t max_tokens = 2 + (flags >> 3);
  const encoder::Tokenizer tokenizer(encoder::Vocabulary::parse(words, kMaxWords), options);
  const encoder::TokenizedText found = tokenizer.encode(text, max_tokens);
  fuzz::require(found.ids.size() >= 2 && found.ids.size() <= max_tokens);
  fuzz::require(found.ids.size() <= found.n_found && found.ids.size() == found.tokens.size());
  for (std::size_t i = 0; i < found.ids.size(); ++i)
    fuzz::require(tokenizer.vocabulary().word(found.ids[i]) == found.tokens[i]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  const std::size_t split = input.find("\n\n", 1);  // the vocabulary ends with a blank line
  const bool has_words = split != std::string_view::npos;
  const std::string_view text = has_words ? input.substr(split + 2) : input.substr(1);
  std::string words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  if (has_words) words += input.substr(1, split - 1);
  fuzz::try_parse([&] {
    try {
      check(words, text, data[0]);
    } catch (const ArgumentError& error) {  // text that is no UTF-8
      fuzz::check_message(error.what());
    }
  });
  return 0;
}
