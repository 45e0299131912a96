// The tokenizer against Hugging Face's, on real text and on every code point.
#include "encoder/tokenizer.h"

#include <string>
#include <vector>

#include "apps/minilm.h"
#include "encoder/config.h"
#include "encoder/unicode_text.h"
#include "gtest/gtest.h"
#include "headwise/error.h"
#include "io/refusal.h"
#include "io/text_file.h"

namespace headwise::encoder {
namespace {

using Ids = std::vector<std::uint32_t>;
using Tokens = std::vector<std::string>;

constexpr std::size_t kMany = 1 << 20;

Tokenizer small_tokenizer(TokenizerOptions options = {}) {
  return {Vocabulary::parse("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\na\n##a\n.\n"
                            "\xE4\xB8\xAD\nA\ne\n\xC3\xA9\nun##\n",
                            kMany),
          std::move(options)};
}

Tokens tokens_of(const Tokenizer& tokenizer, std::string_view text) {
  const TokenizedText found = tokenizer.encode(text, kMany);
  return {found.tokens.begin() + 1, found.tokens.end() - 1};
}

TEST(Tokenizer, EmptyTextIsFirstAndLastToken) {
  const TokenizedText found = small_tokenizer().encode("", kMany);
  EXPECT_EQ(found.ids, (Ids{2, 3}));
  EXPECT_EQ(found.tokens, (Tokens{"[CLS]", "[SEP]"}));
  EXPECT_EQ(found.n_found, 2u);
}

TEST(Tokenizer, TakesTheLongestPieceFromTheLeft) {
  EXPECT_EQ(tokens_of(small_tokenizer(), "unaffable una"),
            (Tokens{"un", "##aff", "##able", "un", "##a"}));
}

TEST(Tokenizer, OneUnknownLetterMakesTheWordUnknown) {
  EXPECT_EQ(tokens_of(small_tokenizer(), "unq a"), (Tokens{"[UNK]", "a"}));
}

TEST(Tokenizer, WordsOfMoreThan100LettersAreUnknown) {
  EXPECT_EQ(tokens_of(small_tokenizer(), std::string(100, 'a')).size(), 100u);
  EXPECT_EQ(tokens_of(small_tokenizer(), std::string(101, 'a')), Tokens{"[UNK]"});
}

TEST(Tokenizer, CutsAtMaxTokensAndKeepsTheLastToken) {
  const TokenizedText found = small_tokenizer().encode("a a a . .", 5);
  EXPECT_EQ(found.tokens, (Tokens{"[CLS]", "a", "a", "a", "[SEP]"}));
  EXPECT_EQ(found.n_found, 7u);
  EXPECT_EQ(small_tokenizer().encode("a a", 2).ids, (Ids{2, 3}));
  EXPECT_EQ(small_tokenizer().encode("a a", 4).n_found, 4u);
}

TEST(Tokenizer, SpecialTokensInTheTextAreTheTokens) {
  EXPECT_EQ(tokens_of(small_tokenizer(), "a[SEP][MASK]a"), (Tokens{"a", "[SEP]", "[MASK]", "a"}));
  EXPECT_EQ(tokens_of(small_tokenizer(), "[mask]").size(), 3u);
}

TEST(Tokenizer, OptionsSwitchStepsOff) {
  TokenizerOptions cased;
  cased.lower_case = cased.strip_accents = false;
  EXPECT_EQ(tokens_of(small_tokenizer(cased), "A \xC3\xA9"), (Tokens{"A", "\xC3\xA9"}));
  TokenizerOptions accents;
  accents.strip_accents = false;
  EXPECT_EQ(tokens_of(small_tokenizer(accents), "A \xC3\x89"), (Tokens{"a", "\xC3\xA9"}));
  EXPECT_EQ(tokens_of(small_tokenizer(), "A \xC3\x89"), (Tokens{"a", "e"}));
  TokenizerOptions joined;
  joined.split_cjk = false;
  EXPECT_EQ(tokens_of(small_tokenizer(), "\xE4\xB8\xAD\xE4\xB8\xAD").size(), 2u);
  EXPECT_EQ(tokens_of(small_tokenizer(joined), "\xE4\xB8\xAD\xE4\xB8\xAD"), Tokens{"[UNK]"});
}

TEST(Tokenizer, InvalidTextIsAnErrorThatSaysWhere) {
  for (const char* text : {"ab\xFF", "ab\xC0\xAF", "ab\xED\xA0\x80", "ab\xE4\xB8"}) {
    try {
      small_tokenizer().encode(text, kMany);
      ADD_FAILURE() << "taken";
    } catch (const ArgumentError& e) {
      EXPECT_STREQ(e.what(), "text: found an invalid byte at offset 2, expected UTF-8");
    }
  }
}

TEST(Tokenizer, RefusesAVocabularyWithoutItsSpecialTokens) {
  EXPECT_THROW(Tokenizer(Vocabulary::parse("[UNK]\n[CLS]\n", kMany), {}), io::Refusal);
  EXPECT_THROW(Tokenizer(Vocabulary::parse("", kMany), {}), io::Refusal);
  TokenizerOptions other;
  other.last = "</s>";
  EXPECT_THROW(Tokenizer(Vocabulary::parse("[UNK]\n[CLS]\n[SEP]\n", kMany), other), io::Refusal);
  EXPECT_NO_THROW(Tokenizer(Vocabulary::parse("[UNK]\n[CLS]\n</s>\n", kMany), other));
}

class MinilmTokenizer : public test::MinilmTest {
 protected:
  static Tokenizer load() {
    const std::string folder = test::model_folder();
    return {Vocabulary::parse(io::read_utf8_file(folder + "/vocab.txt", kMany), kMany),
            parse_tokenizer_config(io::read_utf8_file(folder + "/tokenizer_config.json", kMany))};
  }
};

TEST_F(MinilmTokenizer, GivesHuggingFacesIds) {
  const Tokenizer tokenizer = load();
  for (std::size_t n = 0; n < test::kMinilmTexts; ++n) {
    const auto expected = values<std::int32_t>(n, "ids");
    EXPECT_EQ(tokenizer.encode(text(n), 512).ids, Ids(expected.begin(), expected.end())) << text(n);
  }
}

std::uint32_t fnv1a(std::uint32_t state, std::uint32_t id) {
  for (int byte = 0; byte < 4; ++byte) state = (state ^ ((id >> (8 * byte)) & 255u)) * 0x01000193u;
  return state;
}

// utf8proc knows a newer Unicode than Hugging Face's tables, which are of version 8: of the blocks
// of 16 code points a few differ, all with signs and accents that came later.
TEST_F(MinilmTokenizer, TreatsCodePointsAsHuggingFaceDoes) {
  constexpr char32_t kBlock = 16;
  constexpr std::size_t kMaxNewer = 160;  // 102 with Unicode 14
  const Tokenizer tokenizer = load();
  const auto expected = values<std::uint32_t>("sweep");
  std::size_t n_different = 0;
  for (char32_t block = 0; block < expected.size(); ++block) {
    std::uint32_t hash = 0x811C9DC5u;
    for (char32_t c = block * kBlock; c < (block + 1) * kBlock; ++c) {
      if (c >= 0xD800 && c < 0xE000) continue;
      std::string word = "x";
      append_utf8(word, c);
      word += 'y';
      append_utf8(word, c);
      const Ids ids = tokenizer.encode(word, 512).ids;
      for (std::size_t i = 1; i + 1 < ids.size(); ++i) hash = fnv1a(hash, ids[i]);
    }
    if (hash == expected[block]) continue;
    ++n_different;
    EXPECT_GE(block * kBlock, 0x610u) << "Latin, Greek, Cyrillic, Armenian and Hebrew are old";
  }
  EXPECT_LE(n_different, kMaxNewer);
}

}  // namespace
}  // namespace headwise::encoder
