// The .npy format: magic, version, header length, a Python dict, the elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headwise/dtype.h"

namespace headwise::io::npy {

constexpr std::uint64_t kMagicBytes = 6;
constexpr std::uint64_t kMaxPrefix = 12;  // magic, version, header length
constexpr std::uint64_t kMaxHeader = 1u << 20;

struct Contents {
  std::string descr;          // "<f4"
  std::optional<DType> type;  // empty for one that headwise only lists
  std::uint64_t item_bytes = 0;
  bool big_endian = false;
  bool fortran_order = false;
  std::vector<std::uint64_t> shape;
  std::uint64_t data_begin = 0;  // from the start of the file
  std::uint64_t data_bytes = 0;
};

bool has_magic(std::span<const std::byte> start);

// Bytes in front of the elements, from the file's first twelve (all, if it has fewer); checked
// against the file.
std::uint64_t header_bytes(std::span<const std::byte> start, std::uint64_t file_size);

// `start` holds the file's first bytes, at least those of header_bytes(). Throws a Refusal.
Contents parse(std::span<const std::byte> start, std::uint64_t file_size);

// Magic to newline, padded so that elements begin at a multiple of 64 bytes.
std::string write_header(DType type, std::span<const std::size_t> shape);

}  // namespace headwise::io::npy
