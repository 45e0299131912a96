// Decoding UTF-8 without believing it.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace headwise::io {

struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 0;  // 0: the text does not begin with a valid code point
};
// Of a text that is not empty. Overlong forms, surrogates and values past U+10FFFF are invalid.
CodePoint decode_utf8(std::string_view text);

// Where the first byte lies that is no valid UTF-8.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

}  // namespace headwise::io
