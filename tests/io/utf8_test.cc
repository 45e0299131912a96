#include "io/utf8.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace headwise::io {
namespace {

TEST(Utf8, EveryCodePointDecodesAndEachCutIsNoticed) {
  for (char32_t value = 0; value <= 0x10ffff; value += value < 0x3000 ? 1 : 7) {
    if (value >= 0xd800 && value <= 0xdfff) continue;
    std::string text;
    const auto add = [&](char32_t bits) { text += static_cast<char>(bits); };
    if (value < 0x80) {
      add(value);
    } else if (value < 0x800) {
      add(0xc0 | (value >> 6)), add(0x80 | (value & 0x3f));
    } else if (value < 0x10000) {
      add(0xe0 | (value >> 12)), add(0x80 | ((value >> 6) & 0x3f)), add(0x80 | (value & 0x3f));
    } else {
      add(0xf0 | (value >> 18)), add(0x80 | ((value >> 12) & 0x3f));
      add(0x80 | ((value >> 6) & 0x3f)), add(0x80 | (value & 0x3f));
    }
    const CodePoint point = decode_utf8(text);
    ASSERT_EQ(point.value, value);
    ASSERT_EQ(point.bytes, text.size());
    ASSERT_EQ(find_invalid_utf8(text), std::nullopt);
    for (std::size_t n = 1; n < text.size(); ++n)
      ASSERT_EQ(find_invalid_utf8(text.substr(0, n)), 0u) << static_cast<std::uint32_t>(value);
  }
}

TEST(Utf8, InvalidBytesAreFoundWhereTheyAre) {
  const std::string ascii = "0123456789";
  for (const char* bad :
       {"\x80", "\xbf", "\xc0\xaf", "\xc1\x81", "\xe0\x80\x80", "\xed\xa0\x80", "\xed\xbf\xbf",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80", "\xff", "\xc3(", "\xe2\x82("}) {
    EXPECT_EQ(find_invalid_utf8(ascii + bad + ascii), ascii.size()) << bad;
    EXPECT_EQ(find_invalid_utf8(ascii + ascii + bad), 2 * ascii.size()) << bad;
  }
  EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(find_invalid_utf8(std::string(3, '\0')), std::nullopt);
}

}  // namespace
}  // namespace headwise::io
