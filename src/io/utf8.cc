#include "io/utf8.h"

#include <cstdint>
#include <cstring>

namespace headwise::io {

CodePoint decode_utf8(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return {first, 1};
  std::size_t bytes = 0;
  char32_t value = 0, smallest = 0;
  if ((first & 0xe0u) == 0xc0u) {
    bytes = 2, value = first & 0x1fu, smallest = 0x80;
  } else if ((first & 0xf0u) == 0xe0u) {
    bytes = 3, value = first & 0x0fu, smallest = 0x800;
  } else if ((first & 0xf8u) == 0xf0u) {
    bytes = 4, value = first & 0x07u, smallest = 0x10000;
  } else {
    return {};
  }
  if (text.size() < bytes) return {};
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0u) != 0x80u) return {};
    value = (value << 6) | (next & 0x3fu);
  }
  const bool surrogate = value >= 0xd800 && value <= 0xdfff;
  if (value < smallest || value > 0x10ffff || surrogate) return {};
  return {value, bytes};
}

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint64_t word = 0;  // eight ASCII bytes at a time: headers may have 100 MB
    if (text.size() - i >= sizeof word) {
      std::memcpy(&word, text.data() + i, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        i += sizeof word;
        continue;
      }
    }
    const CodePoint point = decode_utf8(text.substr(i));
    if (point.bytes == 0) return i;
    i += point.bytes;
  }
  return std::nullopt;
}

}  // namespace headwise::io
