#include "io/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "io/refusal.h"

namespace headwise::io {
namespace {

constexpr const char* kWritable = "a place that can be written";
constexpr std::size_t kMaxWrite = std::size_t{1} << 30;  // Linux writes 2 GiB at most per call
constexpr mode_t kNewFileMode = 0666;                    // less the umask

// A link is written through: what it points to is replaced.
std::string follow_links(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), std::free);
  return real ? std::string(real.get()) : path;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string("./") : path.substr(0, slash + 1);
}

std::string temporary_name(const std::string& target) {
  static std::atomic<unsigned> count{0};
  return folder_of(target) + ".headwise-" + std::to_string(getpid()) + "-" +
         std::to_string(count++) + ".tmp";
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : target_(follow_links(path)) {
  if (path.find('\0') != std::string::npos)
    throw Refusal("a path with a zero byte", "a path without");
  if (path.empty() || path.back() == '/') throw Refusal("no file name", "the name of a file");
  struct stat old {};
  const bool exists = lstat(target_.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode))  // a device must not be replaced by a file
    throw Refusal(S_ISDIR(old.st_mode)   ? "a directory"
                  : S_ISLNK(old.st_mode) ? "a link to nothing"
                                         : "a device or pipe",
                  "a new name or a regular file");
  do {
    temporary_ = temporary_name(target_);
    fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kNewFileMode);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) throw Refusal(errno_text(errno), kWritable);
  if (exists && fchmod(fd_, old.st_mode & 07777) != 0) {
    // A file system without modes: the new file keeps the default.
  }
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), kMaxWrite));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Refusal(errno_text(errno), kWritable);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void OutputFile::commit() {
  if (fsync(fd_) != 0 && errno != EINVAL) throw Refusal(errno_text(errno), kWritable);
  if (rename(temporary_.c_str(), target_.c_str()) != 0) throw Refusal(errno_text(errno), kWritable);
  close(fd_);
  fd_ = -1;
  // The rename itself reaches the disk with the folder. A folder that cannot be opened or synced
  // still holds the new file.
  const int folder = open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  fsync(folder);
  close(folder);
}

}  // namespace headwise::io
