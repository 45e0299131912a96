// The .npy header: the input as a file, and the input as the dict of a file that is right
// otherwise.
#include "io/npy.h"

#include <string>

#include "io/npy_dict.h"
#include "support.h"

using namespace headwise;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = fuzz::as_bytes(data, size);
  fuzz::try_parse([&] {
    const io::npy::Contents contents = io::npy::parse(bytes, size);
    fuzz::require(contents.data_begin <= size && contents.data_bytes <= size - contents.data_begin);
    std::uint64_t count = contents.item_bytes;
    for (const std::uint64_t n : contents.shape) count *= n;
    fuzz::require(count == contents.data_bytes);
    fuzz::require(!contents.type || size_of(*contents.type) == contents.item_bytes);
  });
  fuzz::try_parse([&] { io::npy::parse_dict({reinterpret_cast<const char*>(data), size}); });
  std::string file = "\x93NUMPY\x02";
  file += '\0';
  for (unsigned shift = 0; shift < 32; shift += 8)
    file += static_cast<char>((size >> shift) & 0xffu);
  file.append(reinterpret_cast<const char*>(data), size);
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 50;  // so that large shapes are taken
  fuzz::try_parse([&] { io::npy::parse(std::as_bytes(std::span(file)), kHuge); });
  return 0;
}
