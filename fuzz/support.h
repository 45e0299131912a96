// What the fuzz targets share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "headwise/io.h"
#include "io/refusal.h"
#include "io/utf8.h"

namespace headwise::fuzz {

// What must hold whatever the input: the fuzzer reports an abort.
inline void require(bool holds) {
  if (!holds) std::abort();
}

inline std::span<const std::byte> as_bytes(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

// Every message can be shown: one line of at most 500 bytes of UTF-8.
inline void check_message(const std::string& message) {
  require(message.size() <= io::kMaxMessage);
  require(!io::find_invalid_utf8(message));
  for (const char letter : message) require(static_cast<unsigned char>(letter) >= 0x20);
}

// Calls a parser, which may refuse its input and nothing else.
template <typename F>
void try_parse(F&& parse) {
  try {
    parse();
  } catch (const io::Refusal& refusal) {
    check_message(io::file_error("file", refusal).what());
  }
}

}  // namespace headwise::fuzz
