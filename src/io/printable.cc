// printable(): text from outside, made safe to show in one line of a terminal.
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/io.h"
#include "io/utf8.h"

namespace headwise {
namespace {

using io::CodePoint;
using io::decode_utf8;

constexpr std::size_t kMaxUtf8Bytes = 4;

struct Range {
  char32_t first, last;
};

// Letters that move the cursor, turn the direction of writing or cannot be seen.
constexpr std::array<Range, 13> kHidden = {{
    {0x00, 0x1f},
    {0x7f, 0x9f},
    {0xad, 0xad},        // soft hyphen
    {0x61c, 0x61c},      // Arabic letter mark
    {0x180e, 0x180e},    // Mongolian vowel separator
    {0x200b, 0x200f},    // zero width, left-to-right and right-to-left marks
    {0x2028, 0x202e},    // line and paragraph separators, bidirectional embeddings and overrides
    {0x2060, 0x206f},    // word joiner, invisible operators, bidirectional isolates
    {0xfeff, 0xfeff},    // byte order mark
    {0xfff9, 0xfffb},    // interlinear annotations
    {0xfffe, 0xffff},    // never a character
    {0x1d173, 0x1d17a},  // musical format controls
    {0xe0000, 0xe0fff},  // tags and variation selectors
}};

bool is_hidden(char32_t point) {
  for (const Range& r : kHidden)
    if (point >= r.first && point <= r.last) return true;
  return false;
}

std::string hex(char32_t value, int digits) {
  std::string text;
  for (int shift = (digits - 1) << 2; shift >= 0; shift -= 4)
    text += "0123456789abcdef"[(value >> shift) & 0xfu];
  return text;
}

struct Piece {  // what is shown of one code point or one invalid byte
  std::string text;
  std::size_t letters;
};

Piece show(std::string_view text, CodePoint point) {
  if (point.bytes == 0) {
    return {"\\x" + hex(static_cast<unsigned char>(text[0]), 2), 4};
  }
  if (!is_hidden(point.value)) return {std::string(text.substr(0, point.bytes)), 1};
  if (point.value == '\n') return {"\\n", 2};
  if (point.value == '\t') return {"\\t", 2};
  if (point.value == '\r') return {"\\r", 2};
  if (point.value < 0x80) return {"\\x" + hex(point.value, 2), 4};
  if (point.value < 0x10000) return {"\\u" + hex(point.value, 4), 6};
  return {"\\U" + hex(point.value, 8), 10};
}

std::vector<Piece> show_all(std::string_view text) {
  std::vector<Piece> pieces;
  while (!text.empty()) {
    const CodePoint point = decode_utf8(text);
    pieces.push_back(show(text, point));
    text.remove_prefix(point.bytes == 0 ? 1 : point.bytes);
  }
  return pieces;
}

std::string_view first_bytes(std::string_view text, std::size_t bytes) {
  return text.substr(0, bytes);
}

// From a place where a code point begins.
std::string_view last_bytes(std::string_view text, std::size_t bytes) {
  if (bytes >= text.size()) return text;
  text.remove_prefix(text.size() - bytes);
  for (std::size_t i = 1; i < kMaxUtf8Bytes && !text.empty(); ++i) {
    if ((static_cast<unsigned char>(text[0]) & 0xc0u) != 0x80u) break;
    text.remove_prefix(1);
  }
  return text;
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_letters) {
  // A name may have 100 MB: only the ends are looked at.
  const std::size_t letters_looked_at = std::min(max_letters, text.size()) + 1;
  const std::size_t enough = letters_looked_at * kMaxUtf8Bytes;  // a text has at most 2^61 bytes
  if (text.size() <= enough) {
    std::size_t letters = 0;
    std::string whole;
    for (const Piece& piece : show_all(text)) {
      letters += piece.letters;
      whole += piece.text;
    }
    if (letters <= max_letters) return whole;
  }
  if (max_letters == 0) return {};
  const std::size_t room = max_letters - 1;  // beside the ellipsis
  std::string head, tail;
  std::size_t used = 0;
  for (const Piece& piece : show_all(first_bytes(text, enough))) {
    if (used + piece.letters > room - room / 2) break;
    used += piece.letters;
    head += piece.text;
  }
  const std::vector<Piece> last = show_all(last_bytes(text, enough));
  used = 0;
  for (std::size_t i = last.size(); i-- > 0;) {
    if (used + last[i].letters > room / 2) break;
    used += last[i].letters;
    tail.insert(0, last[i].text);
  }
  return head + "\u2026" + tail;
}

}  // namespace headwise
