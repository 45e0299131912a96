// The safetensors header: the input as a file, and the input as the header of a file that is right
// otherwise, which gets further than a length that has to be guessed.
#include "io/safetensors.h"

#include <cstring>
#include <vector>

#include "support.h"

using namespace headwise;

namespace {

void check(const io::safetensors::Contents& contents, std::uint64_t file_size) {
  std::uint64_t filled = contents.data_begin;
  for (const io::safetensors::Record& record : contents.records) {
    fuzz::require(record.begin <= record.end && record.end <= file_size - contents.data_begin);
    std::uint64_t bits = record.dtype->bits;
    for (const std::uint64_t n : contents.shape_of(record)) bits *= n;
    fuzz::require(bits == 8 * (record.end - record.begin));
    fuzz::require(!io::find_invalid_utf8(contents.name_of(record)));
    filled += record.end - record.begin;
  }
  fuzz::require(filled == file_size);
}

void parse(std::span<const std::byte> start, std::uint64_t file_size) {
  fuzz::try_parse([&] { check(io::safetensors::parse(start, file_size), file_size); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  parse(fuzz::as_bytes(data, size), size);
  // The last two bytes say how many bytes of data follow the header.
  std::uint16_t data_bytes = 0;
  if (size < sizeof data_bytes) return 0;
  const std::uint64_t length = size - sizeof data_bytes;
  std::memcpy(&data_bytes, data + length, sizeof data_bytes);
  std::vector<std::byte> file(io::safetensors::kLengthBytes + length);
  std::memcpy(file.data(), &length, sizeof length);
  if (length > 0) std::memcpy(file.data() + sizeof length, data, length);
  parse(file, file.size() + data_bytes);
  return 0;
}
