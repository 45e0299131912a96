#include "io/text_file.h"

#include <algorithm>
#include <span>

#include "io/refusal.h"
#include "io/regular_file.h"
#include "io/utf8.h"

namespace headwise::io {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 16;

[[noreturn]] void refuse_size(const std::string& found, std::uint64_t max_bytes) {
  throw Refusal(found, "at most " + std::to_string(max_bytes) + " bytes");
}

std::string read_all(const std::string& path, std::uint64_t max_bytes) {
  const RegularFile file(path);
  if (file.size() > max_bytes) refuse_size(std::to_string(file.size()) + " bytes", max_bytes);
  std::string text;
  for (;;) {  // to its end: it may grow, and files of /proc say that they are empty
    const std::size_t before = text.size();
    text.resize(before + kChunk);
    const auto room = std::as_writable_bytes(std::span(text)).subspan(before);
    const std::size_t n = file.read_some(before, room);
    text.resize(before + n);
    if (text.size() > max_bytes) refuse_size("more than it said at first", max_bytes);
    if (n < kChunk) return text;
  }
}

}  // namespace

std::string read_regular_file(const std::string& path, std::uint64_t max_bytes) {
  try {
    return read_all(path, max_bytes);
  } catch (const Refusal& refusal) {
    throw file_error(path, refusal);
  }
}

std::string read_utf8_file(const std::string& path, std::uint64_t max_bytes) {
  std::string text = read_regular_file(path, max_bytes);
  if (const auto at = find_invalid_utf8(text))
    throw file_error(
        path, Refusal("a byte that is not UTF-8 at offset " + std::to_string(*at), "UTF-8 text"));
  return text;
}

}  // namespace headwise::io
