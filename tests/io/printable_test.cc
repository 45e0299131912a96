#include <string>

#include "gtest/gtest.h"
#include "headwise/io.h"
#include "io/utf8.h"

namespace headwise {
namespace {

TEST(Printable, PlainTextStaysAsItIs) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("encoder.layer.0 \"q\""), "encoder.layer.0 \"q\"");
  EXPECT_EQ(printable("\u00e4\u4e2d\U0001f600"), "\u00e4\u4e2d\U0001f600");
}

TEST(Printable, WhatMovesOrHidesTextIsEscaped) {
  EXPECT_EQ(printable("a\nb\tc\rd"), "a\\nb\\tc\\rd");
  EXPECT_EQ(printable("\x1b[31mred"), "\\x1b[31mred");
  EXPECT_EQ(printable(std::string_view("\0x", 2)), "\\x00x");
  EXPECT_EQ(printable("\x7f\u009b"), "\\x7f\\u009b");
  EXPECT_EQ(printable("\u202etxt.exe\u2066"), "\\u202etxt.exe\\u2066");
  EXPECT_EQ(printable("a\u200bb\u2028c\ufeff"), "a\\u200bb\\u2028c\\ufeff");
  EXPECT_EQ(printable("\U000e0041"), "\\U000e0041");
}

TEST(Printable, InvalidBytesAreShownOneByOne) {
  EXPECT_EQ(printable("a\xff\xc3(z"), "a\\xff\\xc3(z");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");
}

TEST(Printable, LongTextIsCutInTheMiddle) {
  EXPECT_EQ(printable("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(printable("abcdefghijk", 10), "abcde\u2026hijk");
  EXPECT_EQ(printable("abcdefghijk", 1), "\u2026");
  EXPECT_EQ(printable("abc", 0), "");
}

TEST(Printable, NeverLongerThanAskedAndAlwaysOneLineOfUtf8) {
  unsigned state = 1;
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (unsigned n = (state >> 16) % 200; n > 0; --n) {
      state = state * 1664525u + 1013904223u;
      text += static_cast<char>(state >> 24);
      if (n % 7 == 0) text += "\u4e2d";
    }
    for (const std::size_t most : {0u, 1u, 2u, 7u, 80u, 1000u}) {
      const std::string shown = printable(text, most);
      std::size_t letters = 0;
      ASSERT_EQ(io::find_invalid_utf8(shown), std::nullopt);
      for (const char c : shown) {
        ASSERT_TRUE(static_cast<unsigned char>(c) >= 0x20);
        letters += (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
      }
      ASSERT_LE(letters, most);
    }
    state = state * 1664525u + 1013904223u;
  }
}

TEST(Printable, ANameOfManyMegabytesCostsNothing) {
  const std::string name(std::size_t{1} << 26, '\x80');
  EXPECT_EQ(printable(name, 9), "\\x80\u2026\\x80");
}

}  // namespace
}  // namespace headwise
