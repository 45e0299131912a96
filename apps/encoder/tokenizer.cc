// Order of steps as in Hugging Face's BertNormalizer, BertPreTokenizer and WordPiece: special
// tokens are cut out of the raw text; the rest is cleaned, its ideographs set apart, its accents
// stripped, its letters lowered; words end at spaces, punctuation signs are words; each word is
// covered from the left with the longest piece that the vocabulary has.
#include "encoder/tokenizer.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "encoder/unicode_text.h"
#include "io/refusal.h"
#include "io/utf8.h"

namespace headwise::encoder {
namespace {

constexpr std::size_t kMaxWordLetters = 100;  // WordPiece's max_input_chars_per_word
constexpr std::string_view kInsideWord = "##";
constexpr char32_t kReplacement = 0xFFFD;
constexpr char32_t kCapitalDottedI = 0x0130, kDotAbove = 0x0307;

}  // namespace

Tokenizer::Tokenizer(Vocabulary vocabulary, TokenizerOptions options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)) {
  const auto required = [&](const std::string& token) {
    const auto id = vocabulary_.find(token);
    if (!id)
      throw io::Refusal("no word " + token + " among " + std::to_string(vocabulary_.size()),
                        "the special tokens " + options_.unknown + ", " + options_.first + " and " +
                            options_.last);
    return *id;
  };
  unknown_ = required(options_.unknown);
  first_ = required(options_.first);
  last_ = required(options_.last);
  for (const auto* token :
       {&options_.unknown, &options_.first, &options_.last, &options_.padding, &options_.mask}) {
    const auto id = vocabulary_.find(*token);
    if (id && !token->empty()) specials_.push_back({*token, *id});
  }
  // Where two special tokens begin at one letter, the longer one counts.
  std::stable_sort(specials_.begin(), specials_.end(), [](const Special& a, const Special& b) {
    return a.text.size() > b.text.size();
  });
}

TokenizedText Tokenizer::encode(std::string_view text, std::size_t max_tokens) const {
  if (const auto bad = io::find_invalid_utf8(text))
    core::throw_argument("text", "an invalid byte at offset " + std::to_string(*bad), "UTF-8");
  if (max_tokens < 2) core::throw_argument("max_tokens", std::to_string(max_tokens), "2 or more");

  std::vector<std::uint32_t> pieces;
  std::size_t begin = 0;  // of the plain text since the last special token
  for (std::size_t i = 0; i < text.size();) {
    const auto special = std::find_if(specials_.begin(), specials_.end(), [&](const Special& s) {
      return text.substr(i, s.text.size()) == s.text;
    });
    if (special == specials_.end()) {
      ++i;
      continue;
    }
    add_plain_text(text.substr(begin, i - begin), pieces);
    pieces.push_back(special->id);
    i += special->text.size();
    begin = i;
  }
  add_plain_text(text.substr(begin), pieces);

  TokenizedText out;
  out.n_found = pieces.size() + 2;
  pieces.resize(std::min(pieces.size(), max_tokens - 2));
  out.ids.reserve(pieces.size() + 2);
  out.ids.push_back(first_);
  out.ids.insert(out.ids.end(), pieces.begin(), pieces.end());
  out.ids.push_back(last_);
  for (const auto id : out.ids) out.tokens.push_back(vocabulary_.word(id));
  return out;
}

void Tokenizer::add_plain_text(std::string_view text, std::vector<std::uint32_t>& ids) const {
  const std::u32string letters = normalize(text);
  const std::u32string_view view = letters;
  std::size_t begin = 0;
  const auto end_word = [&](std::size_t end) {
    if (end > begin) add_word(view.substr(begin, end - begin), ids);
    begin = end;
  };
  for (std::size_t i = 0; i < view.size(); ++i) {
    if (is_space(view[i])) {
      end_word(i);
      begin = i + 1;
    } else if (is_punctuation(view[i])) {
      end_word(i);
      end_word(i + 1);
    }
  }
  end_word(view.size());
}

std::u32string Tokenizer::normalize(std::string_view text) const {
  std::u32string cleaned;
  for (const char32_t c : decode_utf8(text)) {
    if (c == 0 || c == kReplacement || is_control(c)) continue;
    if (is_space(c))
      cleaned.push_back(U' ');
    else if (options_.split_cjk && is_cjk(c))
      cleaned.append({U' ', c, U' '});
    else
      cleaned.push_back(c);
  }
  if (options_.strip_accents) {
    std::u32string decomposed;
    for (const char32_t c : cleaned) append_decomposed(decomposed, c);
    // Canonical reordering moves accents only, and those go here.
    std::erase_if(decomposed, is_accent);
    cleaned = std::move(decomposed);
  }
  if (!options_.lower_case) return cleaned;
  std::u32string lowered;
  for (const char32_t c : cleaned) {
    if (c == kCapitalDottedI)  // the one letter whose lower case is two code points
      lowered.append({U'i', kDotAbove});
    else
      lowered.push_back(simple_lower(c));
  }
  return lowered;
}

void Tokenizer::add_word(std::u32string_view word, std::vector<std::uint32_t>& ids) const {
  if (word.size() > kMaxWordLetters) {
    ids.push_back(unknown_);
    return;
  }
  const std::size_t n_before = ids.size();
  std::string piece;
  std::vector<std::size_t> ends;  // ends[i]: bytes of `piece` up to letter start + i
  for (std::size_t start = 0; start < word.size();) {
    piece = start == 0 ? std::string_view() : kInsideWord;
    ends.clear();
    for (std::size_t i = start; i < word.size() && piece.size() < vocabulary_.longest_word(); ++i) {
      append_utf8(piece, word[i]);
      ends.push_back(piece.size());
    }
    std::optional<std::uint32_t> found;
    while (!ends.empty() && !found) {
      found = vocabulary_.find(std::string_view(piece).substr(0, ends.back()));
      if (!found) ends.pop_back();
    }
    if (!found) {  // one letter without a piece makes the whole word unknown
      ids.resize(n_before);
      ids.push_back(unknown_);
      return;
    }
    ids.push_back(*found);
    start += ends.size();
  }
}

}  // namespace headwise::encoder
