#include "io/regular_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "io/refusal.h"

namespace headwise::io {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "something else";
}

struct stat stat_of(int fd) {
  struct stat facts {};
  if (fstat(fd, &facts) != 0) throw Refusal(errno_text(errno), "a readable file");
  return facts;
}

constexpr std::size_t kMaxRead = std::size_t{1} << 30;  // Linux reads 2 GiB at most per call

}  // namespace

void SpanSource::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > bytes_.size() || out.size() > bytes_.size() - offset)
    throw Refusal("the end of the file", std::to_string(out.size()) + " bytes more");
  std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
}

RegularFile::RegularFile(const std::string& path) {
  if (path.find('\0') != std::string::npos)
    throw Refusal("a path with a zero byte", "a path without");
  fd_ = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (fd_ < 0) throw Refusal(errno_text(errno), "a readable file");
  try {
    const struct stat facts = stat_of(fd_);
    if (!S_ISREG(facts.st_mode)) throw Refusal(kind_of(facts.st_mode), "a regular file");
    size_ = static_cast<std::uint64_t>(facts.st_size);
  } catch (...) {
    close(fd_);
    throw;
  }
}

RegularFile::~RegularFile() { close(fd_); }

std::size_t RegularFile::read_some(std::uint64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t left = std::min(out.size() - done, kMaxRead);
    const ssize_t n = pread(fd_, out.data() + done, left, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Refusal(errno_text(errno), "a file that can be read to its end");
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

void RegularFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset || read_some(offset, out) != out.size())
    throw Refusal("the end of the file", std::to_string(out.size()) + " bytes more");
}

Mapping::Mapping(const RegularFile& file) {
  if (file.size_ == 0) return;
  if (file.size_ > std::numeric_limits<std::size_t>::max())
    throw Refusal(std::to_string(file.size_) + " bytes", "a file that fits the address space");
  void* start = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, file.fd_, 0);
  if (start == MAP_FAILED) throw Refusal(errno_text(errno), "a file that can be mapped");
  bytes_ = {static_cast<const std::byte*>(start), file.size_};
  if (static_cast<std::uint64_t>(stat_of(file.fd_).st_size) == file.size_) return;
  munmap(start, file.size_);
  throw Refusal("a file that is being changed", std::to_string(file.size_) + " bytes");
}

Mapping::~Mapping() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Mapping::Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace headwise::io
