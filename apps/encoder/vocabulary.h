// A BERT vocabulary: one word piece a line, numbered from 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace headwise::encoder {

class Vocabulary {
 public:
  // Lines end with \n, \r\n or \r; the last one needs no end; a blank line is a word and counts.
  // Of a word that is there twice the later line counts, as in Hugging Face's reader.
  // Throws io::Refusal for text that is no UTF-8 or has more than max_words or 2^20 words; needs no
  // more memory than for those.
  static Vocabulary parse(std::string_view text, std::size_t max_words);

  std::size_t size() const { return words_.size(); }
  const std::string& word(std::uint32_t id) const { return words_[id]; }
  std::optional<std::uint32_t> find(std::string_view word) const;
  std::size_t longest_word() const { return longest_word_; }  // in bytes

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  std::vector<std::string> words_;
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> ids_;
  std::size_t longest_word_ = 0;
};

}  // namespace headwise::encoder
