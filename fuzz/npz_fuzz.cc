// Zip directories, deflated headers and elements.
#include "io/npz.h"

#include "support.h"

using namespace headwise;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = fuzz::as_bytes(data, size);
  const io::SpanSource file(bytes);
  fuzz::try_parse([&] {
    for (const io::npz::Array& array : io::npz::parse(file)) {
      const io::zip::Member& member = array.member;
      fuzz::require(member.data_begin <= size && member.stored_bytes <= size - member.data_begin);
      fuzz::require(array.contents.data_begin + array.contents.data_bytes == member.plain_bytes);
      fuzz::try_parse([&] {
        if (member.method == io::zip::kStored)
          io::npz::check_stored(bytes, array);
        else
          io::npz::inflate_elements(file, array);
      });
    }
  });
  return 0;
}
