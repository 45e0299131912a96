#include "encoder/unicode_text.h"

#include <utf8proc.h>

#include <array>

#include "io/utf8.h"

namespace headwise::encoder {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

std::u32string decode_utf8(std::string_view valid_text) {
  std::u32string out;
  while (!valid_text.empty()) {
    const io::CodePoint c = io::decode_utf8(valid_text);
    if (c.bytes == 0) break;
    out.push_back(c.value);
    valid_text.remove_prefix(c.bytes);
  }
  return out;
}

void append_utf8(std::string& text, char32_t c) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(n));
}

bool is_space(char32_t c) {
  if (c == U'\t' || c == U'\n' || c == U'\r') return true;
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

bool is_control(char32_t c) {
  if (c == U'\t' || c == U'\n' || c == U'\r') return false;
  const auto k = category(c);  // unassigned code points stay, and become [UNK]
  return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
}

bool is_punctuation(char32_t c) {
  if (c < 128)
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
           (c >= 123 && c <= 126);
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool is_cjk(char32_t c) {
  struct Range {
    char32_t first, last;
  };
  // The ideographs of BERT's original code: no kana, no Hangul, no extension past E.
  static constexpr Range kRanges[] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                      {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                      {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  for (const auto& r : kRanges)
    if (c >= r.first && c <= r.last) return true;
  return false;
}

bool is_accent(char32_t c) { return category(c) == UTF8PROC_CATEGORY_MN; }

char32_t simple_lower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

void append_decomposed(std::u32string& text, char32_t c) {
  std::array<utf8proc_int32_t, 32> parts{};  // a canonical decomposition has at most 4
  int boundary = 0;
  const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(),
                                         static_cast<utf8proc_ssize_t>(parts.size()),
                                         UTF8PROC_DECOMPOSE, &boundary);
  for (utf8proc_ssize_t i = 0; i < n; ++i)
    text.push_back(static_cast<char32_t>(parts[static_cast<std::size_t>(i)]));
}

}  // namespace headwise::encoder
