// BERT's WordPiece tokenizer, id for id as Hugging Face's BertTokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "encoder/vocabulary.h"

namespace headwise::encoder {

// The fields of tokenizer_config.json that change what a text becomes.
struct TokenizerOptions {
  bool lower_case = true;     // do_lower_case
  bool strip_accents = true;  // strip_accents; when null or missing: do_lower_case
  bool split_cjk = true;      // tokenize_chinese_chars
  std::string unknown = "[UNK]", first = "[CLS]", last = "[SEP]", padding = "[PAD]",
              mask = "[MASK]";
};

struct TokenizedText {
  std::vector<std::uint32_t> ids;   // [CLS], the pieces, [SEP]
  std::vector<std::string> tokens;  // the same as words of the vocabulary
  std::size_t n_found = 0;          // tokens before the cut at max_tokens
};

class Tokenizer {
 public:
  // Throws io::Refusal when the vocabulary lacks the unknown, first or last token.
  Tokenizer(Vocabulary vocabulary, TokenizerOptions options);

  // At most max_tokens (2 or more) with [CLS] and [SEP]: later pieces are cut off, as with
  // truncation=True. The names of special tokens inside the text stand for the tokens. Throws
  // ArgumentError when the text is no UTF-8.
  TokenizedText encode(std::string_view text, std::size_t max_tokens) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Special {
    std::string text;
    std::uint32_t id;
  };

  void add_plain_text(std::string_view text, std::vector<std::uint32_t>& ids) const;
  std::u32string normalize(std::string_view text) const;
  void add_word(std::u32string_view word, std::vector<std::uint32_t>& ids) const;

  Vocabulary vocabulary_;
  TokenizerOptions options_;
  std::uint32_t unknown_ = 0, first_ = 0, last_ = 0;
  std::vector<Special> specials_;
};

}  // namespace headwise::encoder
