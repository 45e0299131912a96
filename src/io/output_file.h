// Writing a file so that nothing half-written is ever seen under its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace headwise::io {

// Bytes go to a temporary file beside the target; commit() flushes it to the disk and renames it.
// Without commit() the target stays as it was. Throws a Refusal.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

 private:
  std::string target_, temporary_;
  int fd_ = -1;
};

}  // namespace headwise::io
