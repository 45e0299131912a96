#include "cli/heat_map.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "cli/common.h"
#include "gtest/gtest.h"

namespace headwise::cli {
namespace {

std::vector<std::string> lines_of(std::span<const std::string> tokens,
                                  std::span<const float> weights, HeatMapOptions options = {}) {
  std::ostringstream out;
  print_heat_map(out, tokens, weights, options);
  std::istringstream in(out.str());
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> numbered(std::size_t T) {
  std::vector<std::string> tokens;
  for (std::size_t t = 0; t < T; ++t) tokens.push_back("token" + std::to_string(t));
  return tokens;
}

TEST(HeatMap, ShortTextsShowPercent) {
  const std::vector<std::string> tokens = {"[CLS]", "cat", "##s"};
  const float weights[9] = {1, 0, 0, 0.25f, 0.746f, 0.004f, 0.5f, 0.494f, 0.006f};
  const auto lines = lines_of(tokens, weights);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0], "           [CL cat   s");
  EXPECT_EQ(lines[1], "  0 [CLS]  100   .   .");
  EXPECT_EQ(lines[2], "  1 cat     25  75   .");
  EXPECT_EQ(lines[3], "  2 ##s     50  49   1");
}

TEST(HeatMap, AnyLengthFits80Columns) {
  for (std::size_t T : {1, 2, 15, 16, 17, 21, 22, 31, 32, 33, 62, 63, 64, 65, 100, 512}) {
    const auto tokens = numbered(T);
    std::vector<float> weights(T * T, 1.0f / static_cast<float>(T));
    for (const std::string& line : lines_of(tokens, weights))
      EXPECT_LE(display_width(line), 80u) << T << ": " << line;
  }
}

TEST(HeatMap, LongTextsShowAWindowAndSayWhich) {
  const std::size_t T = 100;
  const std::vector<float> weights(T * T, 0.96f);
  const auto tokens = numbered(T);
  const auto first = lines_of(tokens, weights);
  EXPECT_EQ(first[2].find("   0 token0"), 0u);
  EXPECT_NE(first[2].find('#'), std::string::npos);
  EXPECT_NE(first.back().find("tokens 0 to 66 of 100"), std::string::npos) << first.back();
  HeatMapOptions options;
  options.from = 1000;
  const auto last = lines_of(tokens, weights, options);
  EXPECT_NE(last.back().find("tokens 33 to 99 of 100"), std::string::npos) << last.back();
}

TEST(HeatMap, WideLettersKeepTheGrid) {
  const std::vector<std::string> tokens = {"\xE6\xB3\xA8\xE6\x84\x8F", "a"};
  const float weights[4] = {0.5f, 0.5f, 1, 0};
  const auto lines = lines_of(tokens, weights);
  EXPECT_EQ(display_width(lines[1]), display_width(lines[2]));
  EXPECT_EQ(display_width(lines[0]), display_width(lines[2]));
}

TEST(HeatMap, ColourChangesNoLetter) {
  const auto tokens = numbered(20);
  const std::vector<float> weights(400, 0.05f);
  const auto plain = lines_of(tokens, weights);
  for (const Colour colour : {Colour::palette, Colour::full}) {
    HeatMapOptions options;
    options.colour = colour;
    auto coloured = lines_of(tokens, weights, options);
    EXPECT_NE(coloured[1], plain[1]);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      std::string& line = coloured[i];
      for (std::size_t at; (at = line.find('\x1b')) != std::string::npos;)
        line.erase(at, line.find('m', at) - at + 1);
      EXPECT_EQ(line, plain[i]);
    }
  }
  for (const std::string& line : plain) EXPECT_EQ(line.find('\x1b'), std::string::npos);
}

TEST(HeatMap, NaNIsNotHidden) {
  const std::vector<std::string> tokens = {"a"};
  const float weight = NAN;
  EXPECT_EQ(lines_of(tokens, {&weight, 1})[1], "  0 a    ?");
}

TEST(HeatMap, ColoursFollowTheEnvironment) {
  EXPECT_EQ(terminal_colour(nullptr, "xterm-256color", nullptr), Colour::palette);
  EXPECT_EQ(terminal_colour(nullptr, "xterm-256color", "truecolor"), Colour::full);
  EXPECT_EQ(terminal_colour("1", "xterm-256color", "truecolor"), Colour::none);
  EXPECT_EQ(terminal_colour("", "xterm-256color", nullptr), Colour::palette);  // no-color.org
  EXPECT_EQ(terminal_colour(nullptr, "xterm", nullptr), Colour::none);
  EXPECT_EQ(terminal_colour(nullptr, "dumb", "truecolor"), Colour::none);
  EXPECT_EQ(terminal_colour(nullptr, nullptr, nullptr), Colour::none);
}

}  // namespace
}  // namespace headwise::cli
