// The safetensors format: 8 bytes of header length, a JSON header, the tensors' bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/dtype.h"

namespace headwise::io::safetensors {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr std::size_t kMaxDepth = 4;
// Keys and values of one tensor, with its dims and with fields that only others know: a header of a
// hundred megabytes must not take longer than a second.
constexpr std::size_t kMaxParts = 65536;
constexpr std::size_t kMaxMetadata = std::size_t{1} << 20;  // keys; each costs some 100 bytes

struct DTypeFacts {
  std::string_view name;
  std::uint64_t bits;  // per element
  std::optional<DType> type;
};
const DTypeFacts* find_dtype(std::string_view name);  // nullptr: not one of the format's
std::string_view name_of(DType type);

// A header may list a million tensors, or one of fifty million dims: names and shapes lie in two
// pools, the shapes' numbers in as few bytes as they need.
struct Record {
  std::uint64_t begin = 0, end = 0;  // of the bytes, from data_begin
  const DTypeFacts* dtype = nullptr;
  std::uint32_t name_begin = 0, name_size = 0;
  std::uint32_t shape_begin = 0, rank = 0;
};

struct Contents {
  std::vector<Record> records;  // in the header's order
  std::string names, shapes;
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // from the start of the file

  std::string_view name_of(const Record& r) const {
    return std::string_view(names).substr(r.name_begin, r.name_size);
  }
  std::vector<std::uint64_t> shape_of(const Record& r) const;
};

// Bytes of the header with its length, from the file's first eight; checked against the file.
std::uint64_t header_bytes(std::span<const std::byte> first_bytes, std::uint64_t file_size);

// `start` holds the file's first bytes, at least those of header_bytes(). Throws a Refusal.
Contents parse(std::span<const std::byte> start, std::uint64_t file_size);

}  // namespace headwise::io::safetensors
