#include "io/output_file.h"

#include <sys/stat.h>

#include <filesystem>

#include "io/refusal.h"
#include "io/support.h"

namespace headwise::io {
namespace {

namespace fs = std::filesystem;

std::size_t files_in(const test::TempFolder& folder) {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder / "")) ++n;
  return n;
}

TEST(OutputFile, AppearsWithCommitOnly) {
  const test::TempFolder folder;
  {
    OutputFile out(folder / "a");
    out.write("abc");
    EXPECT_FALSE(fs::exists(folder / "a"));
    out.commit();
    EXPECT_EQ(test::read_bytes(folder / "a"), "abc");
  }
  EXPECT_EQ(test::read_bytes(folder / "a"), "abc");
  {
    OutputFile out(folder / "a");
    out.write("def");
  }
  EXPECT_EQ(test::read_bytes(folder / "a"), "abc");  // the old file
  EXPECT_EQ(files_in(folder), 1u);                   // and nothing beside it
}

TEST(OutputFile, AFailedWriteLeavesTheOldFile) {
  const test::TempFolder folder;
  test::write_bytes(folder / "a", "old");
  {
    OutputFile out(folder / "a");
    out.write("new");
    fs::remove(folder / "a");
    fs::create_directory(folder / "a");  // a folder in its place: rename fails
    fs::create_directory(folder / "a/b");
    EXPECT_THROW(out.commit(), Refusal);
  }
  EXPECT_EQ(files_in(folder), 1u);
  EXPECT_TRUE(fs::exists(folder / "a/b"));
}

TEST(OutputFile, KeepsThePermissionsOfTheOldFile) {
  const test::TempFolder folder;
  test::write_bytes(folder / "a", "old");
  fs::permissions(folder / "a", fs::perms::owner_read | fs::perms::owner_write);
  OutputFile out(folder / "a");
  out.commit();
  EXPECT_EQ(fs::status(folder / "a").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(OutputFile, WritesThroughALink) {
  const test::TempFolder folder;
  test::write_bytes(folder / "a", "old");
  fs::create_symlink("a", folder / "link");
  OutputFile out(folder / "link");
  out.write("new");
  out.commit();
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(test::read_bytes(folder / "a"), "new");
}

TEST(OutputFile, WhatIsNoFileIsNotReplaced) {
  const test::TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_symlink("nothing", folder / "dangling");
  fs::create_directory(folder / "folder");
  for (const std::string& path :
       {folder / "pipe", folder / "dangling", folder / "folder", folder / "folder/",
        folder / "missing/a", std::string("/dev/null"), std::string(),
        folder / std::string("a\0b", 3)})
    EXPECT_THROW(OutputFile{path}, Refusal) << path;
  EXPECT_EQ(files_in(folder), 3u);
}

TEST(OutputFile, LongNamesAreNotTooLong) {
  const test::TempFolder folder;
  const std::string name(255, 'n');
  OutputFile out(folder / name);
  out.commit();
  EXPECT_TRUE(fs::exists(folder / name));
}

}  // namespace
}  // namespace headwise::io
