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

}  // namespace

FileError file_error(std::string_view path, const Refusal& refusal) {
  std::size_t letters = 160;
  std::string text = word(path, refusal, letters);
  while (text.size() > kMaxMessage) {  // letters may have four bytes
    letters = letters * 3 / 4;
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
