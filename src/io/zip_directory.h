// The zip format's numbers, and the directory of a zip file, checked against the file and against
// each member's own header.
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

// "PK" and a pair of letters that says what follows.
constexpr std::uint32_t kLocalSignature = 0x04034b50, kEntrySignature = 0x02014b50,
                        kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50,
                        kLocator64Signature = 0x07064b50;
constexpr std::uint64_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                        kLocator64Bytes = 20, kMaxComment = 0xffff;
// Stands in 16 and 32 bits for a number that is found in a zip64 part.
constexpr std::uint16_t kIn64Short = 0xffff;
constexpr std::uint32_t kIn64 = 0xffffffff;
constexpr std::uint16_t kExtraZip64 = 0x0001;
constexpr std::uint16_t kExtraPadding = 0xd935;  // what Android's zipalign pads with
constexpr std::uint64_t kExtraHeadBytes = 4;     // id and size
// General purpose flags.
constexpr std::uint16_t kEncrypted = 1u << 0, kSizesBehindData = 1u << 3, kPatch = 1u << 5,
                        kStrongEncryption = 1u << 6, kUtf8Name = 1u << 11, kMaskedHeader = 1u << 13;

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
