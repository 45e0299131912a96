// Why a file is not believed. Parsers throw a Refusal, which knows no path; whoever opened the file
// turns it into the FileError that a person sees.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "headwise/error.h"

namespace headwise::io {

class Refusal : public std::exception {
 public:
  // `found` and `expected` may quote the file: they are escaped and cut when shown.
  Refusal(std::string found, std::string expected, std::string_view tensor = {});
  const char* what() const noexcept override { return found_.c_str(); }
  const std::string& found() const { return found_; }
  const std::string& expected() const { return expected_; }
  const std::string& tensor() const { return tensor_; }  // empty: the file as a whole

 private:
  std::string found_, expected_, tensor_;
};

constexpr std::size_t kMaxMessage = 500;  // bytes, so letters too

// "PATH, tensor NAME: found FOUND, expected EXPECTED", in one line.
FileError file_error(std::string_view path, const Refusal& refusal);

std::string errno_text(int error);  // "no such file or folder"

}  // namespace headwise::io
