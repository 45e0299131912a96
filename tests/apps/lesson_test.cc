// The lessons compute what they claim; by hand gives torch's numbers.
#include "cli/lesson/lesson.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "support/cli.h"

namespace headwise::cli {
namespace {

using nlohmann::json;
using test::run_cli;

json run_json(std::vector<std::string> args) {
  args.insert(args.begin(), "lesson");
  args.push_back("--json");
  const auto result = run_cli(args);
  EXPECT_EQ(result.code, kSuccess) << result.err;
  return json::parse(result.out);
}

TEST(Lesson, AloneListsTheLessons) {
  const auto result = run_cli({"lesson"});
  EXPECT_EQ(result.code, kSuccess);
  for (const char* name : {"lesson scale", "lesson heads", "lesson byhand"})
    EXPECT_NE(result.out.find(name), std::string::npos) << result.out;
}

TEST(Lesson, WrongUse) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"lesson", "tails"},
           {"lesson", "scale", "heads"},
           {"lesson", "scale", "--d-k", "0"},
           {"lesson", "scale", "--d-k", "4,x"},
           {"lesson", "scale", "--d-k", "100000000"},
           {"lesson", "heads", "--heads", "-1"},
           {"lesson", "heads", "--d-model", "12", "--heads", "5"},
           {"lesson", "byhand", "--embed-dim", "8", "--heads", "3"},
           {"lesson", "byhand", "--seed", "1e3"}}) {
    const auto result = run_cli(args);
    EXPECT_EQ(result.code, kUsageError) << args.back() << result.err;
    EXPECT_EQ(result.out, "");
  }
}

// M2: the variance of a dot product grows with d_k and is 1 after scaling; the gradient survives.
TEST(Lesson, ScaleMeasuresTheVarianceAndTheGradient) {
  const json lesson = run_json({"scale"});
  double before = 1;
  for (const json& width : lesson["widths"]) {
    const double d_k = width["d_k"];
    EXPECT_NEAR(width["unscaled"]["variance"].get<double>() / d_k, 1, 0.15) << width;
    EXPECT_NEAR(width["scaled"]["variance"].get<double>(), 1, 0.15) << width;
    const double gradient = width["unscaled"]["gradient"];
    EXPECT_LT(gradient, before);
    before = gradient;
    EXPECT_GT(width["scaled"]["gradient"].get<double>(), 0.9) << width;
  }
  EXPECT_LT(before, 0.1);
}

// M3, M4, M7: slices, 4 d_model^2 for every h, shapes (2,16,512) and (2,8,16,16).
TEST(Lesson, HeadsAreSlices) {
  const json lesson = run_json({"heads"});
  EXPECT_EQ(lesson["output_shape"], (std::vector<int>{2, 16, 512}));
  EXPECT_EQ(lesson["weights_shape"], (std::vector<int>{2, 8, 16, 16}));
  EXPECT_EQ(lesson["counts"].size(), 10u);
  for (const json& count : lesson["counts"]) EXPECT_EQ(count["parameters"], 4 * 512 * 512);
  EXPECT_LT(lesson["output_difference"].get<double>(), 1e-6);
  EXPECT_EQ(lesson["agrees"], true);
  const json small = run_json({"heads", "--d-model", "12", "--heads", "3", "--tokens", "5"});
  EXPECT_EQ(small["weights_shape"], (std::vector<int>{2, 3, 5, 5}));
  EXPECT_EQ(small["counts"].size(), 6u);
}

// M10, against numbers that torch printed (tests/fixtures/make_lesson.py).
TEST(Lesson, ByHandIsTorch) {
  std::ifstream file(std::string(HEADWISE_FIXTURES) + "/lesson_byhand.json");
  const json fixture = json::parse(file);
  int compared = 0;
  for (const json& torch : fixture["cases"]) {
    if (torch["batch_first"] == false) continue;  // its x is another one
    std::vector<std::string> args{"byhand"};
    if (torch["x_drawn"] == "before") args.push_back("--x-first");
    const json lesson = run_json(args);
    EXPECT_LE(lesson["largest_difference"].get<double>(), 1e-7);
    EXPECT_EQ(lesson["batch_first_difference"], 0.0);
    EXPECT_EQ(lesson["x"]["shape"], (std::vector<int>{2, 4, 8}));
    EXPECT_EQ(lesson["output"]["shape"], (std::vector<int>{2, 4, 8}));
    EXPECT_EQ(lesson["weights"]["shape"], (std::vector<int>{2, 4, 4}));
    for (const auto& [ours, theirs] :
         {std::pair("x", "x"), {"output", "output"}, {"weights", "average_weights"}}) {
      const std::vector<double> found = lesson[ours]["values"], expected = torch[theirs]["values"];
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], expected[i], 3e-7) << ours << " " << i;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 2 * (64 + 64 + 32));
}

TEST(Lesson, ByHandPrintsTorchsDigitsAndShapes) {
  std::ifstream file(std::string(HEADWISE_FIXTURES) + "/lesson_byhand.json");
  const json torch = json::parse(file)["cases"][0];
  const std::string text = run_cli({"lesson", "byhand"}).out;
  for (const char* shape : {"(2, 4, 8)", "(2, 4, 4)", "(4, 2, 8)", "(24, 8)"})
    EXPECT_NE(text.find(shape), std::string::npos) << shape;
  // A value may lie within 1e-7 of where six digits round to the other side.
  const auto shown = [&](double value) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%10.6f", value);
    return text.find(digits) != std::string::npos;
  };
  for (double value : torch["output"]["values"])
    EXPECT_TRUE(shown(value) || shown(value - 1e-7) || shown(value + 1e-7)) << value;
}

TEST(Lesson, ByHandAgreesForOtherNumbers) {
  for (int seed = 1; seed < 20; ++seed)
    run_json({"byhand", "--seed", std::to_string(seed), "--embed-dim", "30", "--heads", "5",
              "--tokens", "9", "--batch", "3"});
}

}  // namespace
}  // namespace headwise::cli
