// The .npz format: a zip file of .npy members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headwise/buffer.h"
#include "io/npy.h"
#include "io/regular_file.h"
#include "io/zip_directory.h"

namespace headwise::io::npz {

// Of all members' .npy headers together: a deflated megabyte of blanks takes a kilobyte.
constexpr std::uint64_t kMaxHeaders = 64u << 20;

struct Array {
  std::string name;  // of the member, without ".npy"
  zip::Member member;
  npy::Contents contents;
};

// Looks at the directory and at each member's header. Throws a Refusal.
std::vector<Array> parse(const ByteSource& file);

// Throws a Refusal when a stored member's bytes do not have its checksum.
void check_stored(std::span<const std::byte> file, const Array& array);

// The elements of a deflated member, checksum verified. Throws a Refusal.
Buffer inflate_elements(const ByteSource& file, const Array& array);

}  // namespace headwise::io::npz
