#include "core/philox.h"

#include <cmath>

#include "gtest/gtest.h"

namespace headwise::core {
namespace {

TEST(Philox, KnownAnswers) {  // those that Random123 publishes for philox4x32-10
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Dropout, KeepsAllAtZeroAndNoneAtOne) {
  for (std::size_t t = 0; t < 20; ++t)
    for (std::size_t j = 0; j < 20; ++j) {
      EXPECT_TRUE(dropout_keeps(0.0, 7, 3, t, j));
      EXPECT_FALSE(dropout_keeps(1.0, 7, 3, t, j));
    }
}

TEST(Dropout, KeepsTheShareThatItsProbabilityLeaves) {
  for (double p : {0.1, 0.5, 0.9}) {
    int kept = 0;
    for (std::size_t t = 0; t < 200; ++t)
      for (std::size_t j = 0; j < 200; ++j)
        kept += dropout_keeps(p, 1, std::uint64_t{1} << 40, t, j);
    // 40000 draws: six standard deviations
    EXPECT_NEAR(kept, 40000 * (1 - p), 6 * std::sqrt(40000 * p * (1 - p))) << p;
  }
}

TEST(Dropout, SeedsAndHeadsDrawApart) {
  int same_seed = 0, same_head = 0;
  for (std::size_t j = 0; j < 1000; ++j) {
    same_seed +=
        dropout_keeps(0.5, 1, 0, 0, j) == dropout_keeps(0.5, std::uint64_t{1} << 32, 0, 0, j);
    same_head += dropout_keeps(0.5, 1, 0, 0, j) == dropout_keeps(0.5, 1, 1, 0, j);
  }
  EXPECT_NEAR(same_seed, 500, 100);
  EXPECT_NEAR(same_head, 500, 100);
}

}  // namespace
}  // namespace headwise::core
