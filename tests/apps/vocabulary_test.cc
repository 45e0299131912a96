#include "encoder/vocabulary.h"

#include <string>

#include "gtest/gtest.h"
#include "io/refusal.h"

namespace headwise::encoder {
namespace {

constexpr std::size_t kMany = 100;

Vocabulary parse(std::string_view text) { return Vocabulary::parse(text, kMany); }

TEST(Vocabulary, AnyLineEndCounts) {
  const Vocabulary v = parse("a\nb\r\nc\rd");
  ASSERT_EQ(v.size(), 4u);
  EXPECT_EQ(v.word(1), "b");
  EXPECT_EQ(v.word(3), "d");
  EXPECT_EQ(v.find("c"), 2u);
  EXPECT_FALSE(v.find("e").has_value());
}

TEST(Vocabulary, OnlyThoseEndLines) {  // Python's splitlines would cut at each of these
  EXPECT_EQ(parse("a\vb\fc\x1c\xC2\x85\xE2\x80\xA8"
                  "d\n")
                .size(),
            1u);
}

TEST(Vocabulary, BlankLinesCountAndTheLastLineNeedsNoEnd) {
  EXPECT_EQ(parse("").size(), 0u);
  EXPECT_EQ(parse("\n").size(), 1u);
  EXPECT_EQ(parse("\r\n\r\n").size(), 2u);
  EXPECT_EQ(parse("a\n\nb").find("b"), 2u);
  EXPECT_EQ(parse("a\n\nb\n").size(), 3u);
}

TEST(Vocabulary, TheLaterOfTwoEqualWordsCounts) { EXPECT_EQ(parse("a\nb\na\n").find("a"), 2u); }

TEST(Vocabulary, RefusesWhatIsNotUtf8) {
  try {
    parse("a\n\xFF\n");
    ADD_FAILURE() << "taken";
  } catch (const io::Refusal& refusal) {
    EXPECT_EQ(refusal.found(), "a byte that is not UTF-8 at offset 2");
  }
}

TEST(Vocabulary, RefusesMoreWordsThanTheModelHas) {
  EXPECT_EQ(Vocabulary::parse("a\nb\n", 2).size(), 2u);
  EXPECT_THROW(Vocabulary::parse("a\nb\nc", 2), io::Refusal);
  EXPECT_THROW(Vocabulary::parse("a\nb\n\n", 2), io::Refusal);
}

TEST(Vocabulary, HasAMostOfWordsWhateverTheModelSays) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  EXPECT_EQ(Vocabulary::parse(std::string(kMost, '\n'), kMost + 1).size(), kMost);
  try {
    Vocabulary::parse(std::string(kMost + 1, '\n'), kMost + 1);
    ADD_FAILURE() << "taken";
  } catch (const io::Refusal& refusal) {
    EXPECT_EQ(refusal.found(), "more than 1048576 words");
  }
}

}  // namespace
}  // namespace headwise::encoder
