#include "io/regular_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "io/refusal.h"
#include "io/support.h"

namespace headwise::io {
namespace {

std::string why_refused(const std::string& path) {
  try {
    const RegularFile file(path);
  } catch (const Refusal& refusal) {
    return refusal.found();
  }
  return "nothing";
}

TEST(RegularFile, PipesDevicesAndFoldersAreRefusedAtOnce) {
  const test::TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(why_refused(folder / "pipe"), "a pipe");  // and not waited for
  EXPECT_EQ(why_refused("/dev/zero"), "a device");
  EXPECT_EQ(why_refused("/dev/null"), "a device");
  EXPECT_EQ(why_refused(folder / ""), "a directory");
  EXPECT_EQ(why_refused(folder / "nothing"), "no such file or folder");
  EXPECT_EQ(why_refused(folder / std::string("a\0b", 3)), "a path with a zero byte");
  EXPECT_EQ(why_refused(""), "no such file or folder");
  std::filesystem::create_symlink(folder / "loop", folder / "loop");
  EXPECT_NE(why_refused(folder / "loop"), "nothing");
}

TEST(RegularFile, LinksAreFollowed) {
  const test::TempFolder folder;
  test::write_bytes(folder / "a", "abc");
  std::filesystem::create_symlink(folder / "a", folder / "link");
  const RegularFile file(folder / "link");
  EXPECT_EQ(file.size(), 3u);
  std::filesystem::create_symlink("/dev/zero", folder / "device");
  EXPECT_EQ(why_refused(folder / "device"), "a device");
}

TEST(RegularFile, ReadsWithinTheFileOnly) {
  const test::TempFolder folder;
  test::write_bytes(folder / "a", "abcdef");
  const RegularFile file(folder / "a");
  const std::string whole = "abcdef";
  const SpanSource memory(std::as_bytes(std::span(whole)));
  for (const ByteSource* source :
       {static_cast<const ByteSource*>(&file), static_cast<const ByteSource*>(&memory)}) {
    std::array<std::byte, 3> three{};
    source->read(3, three);
    EXPECT_EQ(std::to_integer<char>(three[0]), 'd');
    EXPECT_THROW(source->read(4, three), Refusal);
    EXPECT_THROW(source->read(7, {}), Refusal);
    EXPECT_THROW(source->read(~std::uint64_t{0}, three), Refusal);
    source->read(6, {});
  }
}

TEST(Mapping, ShowsTheFileAndOutlivesIt) {
  const test::TempFolder folder;
  test::write_bytes(folder / "a", "abc");
  test::write_bytes(folder / "empty", "");
  Mapping mapping;
  {
    const RegularFile file(folder / "a"), empty(folder / "empty");
    mapping = Mapping(file);
    EXPECT_TRUE(Mapping(empty).bytes().empty());
  }
  ASSERT_EQ(mapping.bytes().size(), 3u);
  EXPECT_EQ(std::to_integer<char>(mapping.bytes()[2]), 'c');
}

TEST(Mapping, AFileThatShrinksInBetweenIsRefused) {
  const test::TempFolder folder;
  test::write_bytes(folder / "a", "abc");
  const RegularFile file(folder / "a");
  std::filesystem::resize_file(folder / "a", 1);
  EXPECT_THROW(Mapping{file}, Refusal);
}

}  // namespace
}  // namespace headwise::io
