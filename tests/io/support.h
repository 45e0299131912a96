// Files for the tests of src/io: a folder that goes away, bytes written as they are, errors caught.
#pragma once

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/io.h"
#include "support/zip_builder.h"

namespace headwise::test {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "headwise-io-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

inline void expect_equal(const ConstTensorView& found, const ConstTensorView& expected) {
  ASSERT_EQ(found.dtype, expected.dtype);
  ASSERT_EQ(found.shape, expected.shape);
  const Tensor a = Tensor::copy_of(found), b = Tensor::copy_of(expected);
  const std::size_t bytes = a.size() * size_of(found.dtype);
  if (bytes == 0) return;
  EXPECT_EQ(std::memcmp(a.view().data, b.view().data, bytes), 0);
}

// The message of the FileError that `action` throws; "" with a failure when it throws none.
template <typename F>
std::string file_error_of(F&& action) {
  try {
    action();
  } catch (const FileError& error) {
    std::string message = error.what();
    EXPECT_LE(message.size(), 500u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << "no FileError";
  return {};
}

}  // namespace headwise::test
