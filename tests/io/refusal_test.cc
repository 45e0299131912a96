#include "io/refusal.h"

#include <cerrno>

#include "gtest/gtest.h"
#include "io/utf8.h"

namespace headwise::io {
namespace {

TEST(Refusal, IsWordedWithFileTensorFoundAndExpected) {
  EXPECT_STREQ(file_error("a.npy", Refusal("2 bytes", "3")).what(),
               "a.npy: found 2 bytes, expected 3");
  EXPECT_STREQ(file_error("a.npy", Refusal("2 bytes", "3", "x\n")).what(),
               "a.npy, tensor x\\n: found 2 bytes, expected 3");
}

TEST(Refusal, StaysWithin500BytesWhateverTheNames) {
  for (const char* letter : {"x", "\u4e2d", "\U0001f600", "\x1b", "\u202e"}) {
    std::string text;
    for (int i = 0; i < 5000; ++i) text += letter;
    const std::string message = file_error(text, Refusal(text, text, text)).what();
    EXPECT_LE(message.size(), kMaxMessage);
    EXPECT_GE(message.size(), 300u);
    EXPECT_EQ(find_invalid_utf8(message), std::nullopt);
    EXPECT_EQ(message.find('\x1b'), std::string::npos);
  }
}

TEST(Refusal, KeepsOnlyTheEndsOfAHugeName) {
  const std::string name = "begin" + std::string(1 << 20, 'x') + "end";
  const Refusal refusal("a", "b", name);
  EXPECT_LT(refusal.tensor().size(), 10000u);
  EXPECT_TRUE(refusal.tensor().starts_with("begin"));
  EXPECT_TRUE(refusal.tensor().ends_with("end"));
}

TEST(Refusal, SystemErrorsAreWords) {
  EXPECT_EQ(errno_text(ENOENT), "no such file or folder");
  EXPECT_EQ(errno_text(EACCES), "no permission");
  EXPECT_FALSE(errno_text(ENOSPC).empty());
}

}  // namespace
}  // namespace headwise::io
