#include "cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace headwise::cli {

OutputError::OutputError(int error_number)
    : std::runtime_error("standard output: " + std::generic_category().message(error_number)),
      reader_left_(error_number == EPIPE) {}

DescriptorBuffer::DescriptorBuffer(int descriptor) : descriptor_(descriptor) {
  setp(buffer_.data(), buffer_.data() + buffer_.size());
}

bool DescriptorBuffer::is_terminal() const { return ::isatty(descriptor_) == 1; }

DescriptorBuffer::int_type DescriptorBuffer::overflow(int_type letter) {
  sync();
  if (traits_type::eq_int_type(letter, traits_type::eof())) return traits_type::not_eof(letter);
  return sputc(traits_type::to_char_type(letter));
}

int DescriptorBuffer::sync() {
  const char* at = pbase();
  const char* const end = pptr();
  setp(buffer_.data(), buffer_.data() + buffer_.size());  // what fails once is not tried again
  while (at < end) {
    const ssize_t n = ::write(descriptor_, at, static_cast<std::size_t>(end - at));
    if (n >= 0)
      at += n;
    else if (errno != EINTR)
      throw OutputError(errno);
  }
  return 0;
}

void occupy_standard_descriptors() {
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) != -1) continue;
    // The lowest free number is this one; read-only, so that writing fails.
    static_cast<void>(::open("/dev/null", O_RDONLY));
  }
}

}  // namespace headwise::cli
