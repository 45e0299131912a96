#include "io/refusal.h"

#include <cerrno>
#include <system_error>

#include "headwise/io.h"

namespace headwise::io {
namespace {

std::string word(std::string_view path, const Refusal& refusal, std::size_t letters) {
  std::string text = printable(path, letters);
  if (!refusal.tensor().empty()) text += ", tensor " + printable(refusal.tensor(), letters);
  return text + ": found " + printable(refusal.found(), letters) + ", expected " +
         printable(refusal.expected(), letters);
}

// The ends of a name, which are all that is shown of it: a name may have 100 MB.
std::string ends_of(std::string_view name) {
  constexpr std::size_t kEnd = 4000;  // kMaxMessage letters of each would do
  if (name.size() <= kEnd + kEnd) return std::string(name);
  return std::string(name.substr(0, kEnd)) + std::string(name.substr(name.size() - kEnd));
}

}  // namespace

Refusal::Refusal(std::string found, std::string expected, std::string_view tensor)
    : found_(std::move(found)), expected_(std::move(expected)), tensor_(ends_of(tensor)) {}

FileError file_error(std::string_view path, const Refusal& refusal) {
  std::size_t letters = 160;
  std::string text = word(path, refusal, letters);
  while (text.size() > kMaxMessage) {  // letters may have four bytes
    letters -= letters / 4;
    text = word(path, refusal, letters);
  }
  return FileError(text);
}

std::string errno_text(int error) {
  if (error == ENOENT) return "no such file or folder";
  if (error == EACCES) return "no permission";
  return std::generic_category().message(error);
}

}  // namespace headwise::io
