// Numbers in files, whatever their alignment. headwise runs on little-endian machines only.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

namespace headwise::io {

static_assert(std::endian::native == std::endian::little);

// The caller has checked that the bytes are there.
template <typename T>
T little_endian(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.subspan(offset, sizeof value).data(), sizeof value);
  return value;
}

}  // namespace headwise::io
