// Numbers of the zip format: signatures, sizes of its fixed parts, places of their fields.
#pragma once

#include <cstdint>

namespace headwise::io::zip {

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

}  // namespace headwise::io::zip
