// The directory of a zip file, checked against the file and against each member's own header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/regular_file.h"

namespace headwise::io::zip {

// More than any set of weights has, and few enough to be looked at in a second.
constexpr std::uint64_t kMaxMembers = 65536;
constexpr std::uint64_t kMaxDirectory = 32u << 20;

constexpr std::uint16_t kStored = 0, kDeflated = 8;

struct Member {
  std::string name;  // bytes, in whatever encoding
  std::uint16_t method = kStored;
  std::uint32_t crc = 0;
  std::uint64_t header_begin = 0, data_begin = 0;   // from the start of the file
  std::uint64_t stored_bytes = 0, plain_bytes = 0;  // compressed and not
};

bool has_magic(std::span<const std::byte> start);

// Members in the directory's order. Throws a Refusal.
std::vector<Member> read_directory(const ByteSource& file);

}  // namespace headwise::io::zip
