#include "cli/head_stats.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace headwise::cli {
namespace {

constexpr std::size_t kT = 4;
const TokenRoles kRoles = {{true, false, false, false}, {false, false, false, true}};

// Every row looks at the token `to(row)`.
template <typename F>
HeadStats stats_of(F to) {
  std::vector<float> weights(kT * kT, 0.0f);
  for (std::size_t t = 0; t < kT; ++t) weights[t * kT + to(t)] = 1.0f;
  return head_stats(weights, kRoles);
}

TEST(HeadStats, OneTokenEach) {
  const HeadStats self = stats_of([](std::size_t t) { return t; });
  EXPECT_EQ(self.self, 1);
  EXPECT_EQ(self.mean_distance, 0);
  EXPECT_EQ(self.entropy, 0);
  EXPECT_EQ(self.cls, 0.25);
  EXPECT_EQ(behaviour(self, kT), "itself");

  const HeadStats sep = stats_of([](std::size_t) { return kT - 1; });
  EXPECT_EQ(sep.sep, 1);
  EXPECT_EQ(sep.mean_distance, 1.5);
  EXPECT_NEAR(sep.next, 1.0 / 3, 1e-15);
  EXPECT_EQ(behaviour(sep, kT), "[SEP]");
  EXPECT_EQ(behaviour(stats_of([](std::size_t) { return std::size_t{0}; }), kT), "[CLS]");
}

TEST(HeadStats, NeighboursCountOnlyRowsThatHaveThem) {
  const HeadStats next = stats_of([](std::size_t t) { return std::min(t + 1, kT - 1); });
  EXPECT_EQ(next.next, 1);
  EXPECT_EQ(next.previous, 0);
  EXPECT_EQ(behaviour(next, kT), "next token");
  const HeadStats previous = stats_of([](std::size_t t) { return t == 0 ? 0 : t - 1; });
  EXPECT_EQ(previous.previous, 1);
  EXPECT_EQ(behaviour(previous, kT), "previous token");
}

TEST(HeadStats, UniformWeightsHaveFullEntropy) {
  const std::vector<float> weights(kT * kT, 0.25f);
  const HeadStats s = head_stats(weights, kRoles);
  EXPECT_NEAR(s.entropy, 2.0, 1e-12);
  EXPECT_NEAR(s.mean_distance, 1.25, 1e-12);
  EXPECT_EQ(behaviour({0, 6, 0.1, 0.1, 0.1, 0.1, 0.1}, 64), "all alike");
  EXPECT_EQ(behaviour({0, 4, 0.1, 0.1, 0.1, 0.1, 0.1}, 64), "mixed");
  EXPECT_EQ(behaviour({0, 2, 0.1, 0.1, 0.1, 0.1, 0.1}, 64), "few tokens");
  EXPECT_EQ(behaviour({0, 4, 0.1, 0.1, 0.2, 0.2, 0.2}, 64), "neighbours");
}

TEST(HeadStats, OneTokenAlone) {
  const float weight = 1.0f;
  const HeadStats s = head_stats({&weight, 1}, {{true}, {true}});
  EXPECT_EQ(s.self, 1);
  EXPECT_EQ(s.next, 0);
  EXPECT_EQ(s.entropy, 0);
}

TEST(HeadStats, StrongestLinkIsBetweenTwoOrdinaryTokens) {
  std::vector<float> weights(kT * kT, 0.0f);
  weights[1 * kT + 0] = 0.9f;   // on [CLS]
  weights[1 * kT + 1] = 0.8f;   // on itself
  weights[3 * kT + 1] = 0.95f;  // of [SEP]
  weights[1 * kT + 2] = 0.1f;
  weights[2 * kT + 1] = 0.2f;
  const HeadStats s = head_stats(weights, kRoles);
  EXPECT_FLOAT_EQ(static_cast<float>(s.strongest), 0.2f);
  EXPECT_EQ(s.strongest_from, 2u);
  EXPECT_EQ(s.strongest_to, 1u);
}

TEST(HeadStats, MostTellingPicksOtherTokensDecidedly) {
  const HeadStats sharp_on_sep{0, 0.1, 0, 0.9, 0, 0, 0}, sharp_on_next{0, 0.1, 0, 0, 0, 0.9, 0},
      flat{0, 4, 0.1, 0.1, 0.1, 0, 0}, telling{0, 2, 0.2, 0.1, 0.1, 0, 0};
  EXPECT_EQ(most_telling(std::vector{sharp_on_sep, flat, telling, telling, sharp_on_next}, 16), 2u);
  EXPECT_EQ(most_telling(std::vector{flat}, 16), 0u);
  EXPECT_EQ(most_telling(std::vector{flat, flat}, 1), 0u);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(most_telling(std::vector(3, HeadStats{nan, nan, nan, nan, nan, nan, nan}), 4), 0u);
}

}  // namespace
}  // namespace headwise::cli
