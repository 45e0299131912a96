#include "encoder/vocabulary.h"

#include <algorithm>

#include "io/refusal.h"
#include "io/utf8.h"

namespace headwise::encoder {
namespace {

// A word costs some 150 bytes however short it is, and 64 MiB of text may be as many empty ones.
constexpr std::size_t kMaxWords = std::size_t{1} << 20;

}  // namespace

Vocabulary Vocabulary::parse(std::string_view text, std::size_t max_words) {
  if (const auto bad = io::find_invalid_utf8(text))
    throw io::Refusal("a byte that is not UTF-8 at offset " + std::to_string(*bad),
                      "one UTF-8 word a line");
  Vocabulary v;
  const std::size_t most = std::min(max_words, kMaxWords);
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = std::min(text.find_first_of("\r\n", i), text.size());
    if (v.words_.size() == most)
      throw io::Refusal("more than " + std::to_string(most) + " words",
                        most < max_words ? "at most as many"
                                         : "at most as many as the model has word embeddings");
    v.words_.emplace_back(text.substr(i, end - i));
    i = end + (text.substr(end, 2) == "\r\n" ? 2 : 1);
  }
  v.ids_.reserve(v.words_.size());
  for (std::size_t id = 0; id < v.words_.size(); ++id) {
    v.ids_[v.words_[id]] = static_cast<std::uint32_t>(id);
    v.longest_word_ = std::max(v.longest_word_, v.words_[id].size());
  }
  return v;
}

std::optional<std::uint32_t> Vocabulary::find(std::string_view word) const {
  const auto it = ids_.find(word);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

}  // namespace headwise::encoder
