// Standard output whose failures are noticed: a full disk, a closed pipe, no file at all.
#pragma once

#include <array>
#include <stdexcept>
#include <streambuf>

namespace headwise::cli {

class OutputError : public std::runtime_error {
 public:
  explicit OutputError(int error_number);
  bool reader_left() const { return reader_left_; }  // as `head` does: nobody wants to hear of it

 private:
  bool reader_left_;
};

// Writes to a file descriptor and throws OutputError. A stream on it has to let the exception
// through: out.exceptions(std::ios::badbit).
class DescriptorBuffer : public std::streambuf {
 public:
  explicit DescriptorBuffer(int descriptor);
  bool is_terminal() const;

 protected:
  int_type overflow(int_type letter) override;
  int sync() override;

 private:
  int descriptor_;
  std::array<char, 1 << 14> buffer_;
};

// A program started with standard files closed would get their numbers for the next files that it
// opens, and then print into them. Opens something harmless there; writing to it fails.
void occupy_standard_descriptors();

}  // namespace headwise::cli
