#include "io/text_file.h"

#include <sys/stat.h>

#include "io/support.h"

namespace headwise::io {
namespace {

TEST(TextFile, UpToTheLimitAndNotAByteMore) {
  const test::TempFolder folder;
  for (const std::size_t n : {0u, 1u, 65535u, 65536u, 65537u, 200000u}) {
    const std::string text(n, 'x');
    test::write_bytes(folder / "a", text);
    EXPECT_EQ(read_regular_file(folder / "a", n), text);
    if (n == 0) continue;
    const std::string message =
        test::file_error_of([&] { read_regular_file(folder / "a", n - 1); });
    EXPECT_EQ(message, folder / "a" + ": found " + std::to_string(n) + " bytes, expected at most " +
                           std::to_string(n - 1) + " bytes");
  }
}

TEST(TextFile, AFileThatSaysItIsEmptyIsReadToItsEndOrRefused) {
  EXPECT_FALSE(read_regular_file("/proc/self/status", 1 << 20).empty());
  test::file_error_of([] { read_regular_file("/proc/self/status", 10); });
}

TEST(TextFile, WhatIsNoFileIsAnError) {
  const test::TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(test::file_error_of([&] { read_regular_file(folder / "pipe", 10); }),
            folder / "pipe" + ": found a pipe, expected a regular file");
  test::file_error_of([&] { read_regular_file(folder / "nothing", 10); });
}

TEST(TextFile, Utf8IsAskedForByName) {
  const test::TempFolder folder;
  test::write_bytes(folder / "good", "gr\u00fcn");
  test::write_bytes(folder / "bad", "gr\xfcn");
  EXPECT_EQ(read_utf8_file(folder / "good", 100), "gr\u00fcn");
  EXPECT_EQ(test::file_error_of([&] { read_utf8_file(folder / "bad", 100); }),
            folder / "bad" + ": found a byte that is not UTF-8 at offset 2, expected UTF-8 text");
  EXPECT_EQ(read_regular_file(folder / "bad", 100), "gr\xfcn");
}

}  // namespace
}  // namespace headwise::io
