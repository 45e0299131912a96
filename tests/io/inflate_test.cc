#include "io/inflate.h"

#include <string>

#include "io/refusal.h"
#include "io/support.h"

namespace headwise::io {
namespace {

class Inflate : public ::testing::Test {
 protected:
  // A member of which these bytes are kept.
  Inflater open(const std::string& stored) {
    stored_ = stored;
    member_.stored_bytes = stored.size();
    source_ = std::make_unique<SpanSource>(std::as_bytes(std::span(stored_)));
    return Inflater(*source_, member_);
  }
  static std::string read(Inflater& inflater, std::size_t n) {
    std::string out(n, '\0');
    out.resize(inflater.read(std::as_writable_bytes(std::span(out))));
    return out;
  }

  std::string stored_;
  zip::Member member_;
  std::unique_ptr<SpanSource> source_;
};

std::string sample(std::size_t n) {
  std::string text;
  unsigned state = 7;
  while (text.size() < n) {
    state = state * 1664525u + 1013904223u;
    text += static_cast<char>('a' + (state >> 28));
  }
  return text;
}

TEST_F(Inflate, AnyPiecesGiveTheWhole) {
  const std::string plain = sample(100000);
  for (const std::size_t piece : {1u, 7u, 4096u, 65536u, 200000u}) {
    Inflater inflater = open(test::deflated(plain));
    std::string got;
    for (;;) {
      const std::string part = read(inflater, piece);
      got += part;
      if (part.size() < piece) break;
    }
    EXPECT_EQ(got, plain);
    EXPECT_TRUE(inflater.at_end());
  }
}

TEST_F(Inflate, EveryTruncationIsNoticed) {
  const std::string plain = sample(300), stored = test::deflated(plain);
  for (std::size_t n = 0; n < stored.size(); ++n) {
    Inflater inflater = open(stored.substr(0, n));
    EXPECT_THROW(read(inflater, plain.size() + 1), Refusal) << n;
  }
}

TEST_F(Inflate, WhatFollowsTheStreamIsNotItsEnd) {
  Inflater inflater = open(test::deflated("abc") + "x");
  EXPECT_EQ(read(inflater, 3), "abc");
  EXPECT_FALSE(inflater.at_end());
  Inflater more = open(test::deflated("abcd"));
  EXPECT_EQ(read(more, 3), "abc");
  EXPECT_FALSE(more.at_end());
}

TEST_F(Inflate, DamageIsNoticed) {
  Inflater inflater = open("\xff\xff\xff\xff");
  EXPECT_THROW(read(inflater, 10), Refusal);
}

}  // namespace
}  // namespace headwise::io
