// Small text files: config.json, vocab.txt.
#pragma once

#include <cstdint>
#include <string>

namespace headwise::io {

// The bytes of a regular file of at most `max_bytes`; anything else is a FileError. Links are
// followed, pipes and devices are never waited for.
std::string read_regular_file(const std::string& path, std::uint64_t max_bytes);

// The same, and the bytes are valid UTF-8.
std::string read_utf8_file(const std::string& path, std::uint64_t max_bytes);

}  // namespace headwise::io
