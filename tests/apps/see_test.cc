// `headwise see` as a program: what it prints, writes and refuses.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "apps/minilm.h"
#include "apps/tiny_model.h"
#include "cli/common.h"
#include "gtest/gtest.h"
#include "headwise/runtime.h"
#include "nlohmann/json.hpp"
#include "support/cli.h"

namespace headwise::cli {
namespace {

using test::run_cli;
using test::TempFolder;
using test::TinyModel;

class See : public testing::Test {
 protected:
  void SetUp() override { TinyModel().write(folder_); }

  test::CliResult see(std::vector<std::string> more, const std::string& text = "The cats sat.") {
    std::vector<std::string> args = {"see", "--model", folder_ / "", "--text", text};
    args.insert(args.end(), more.begin(), more.end());
    return run_cli(args);
  }

  TempFolder folder_;
};

TEST_F(See, ShowsTokensHeadsAndAMapWithin80Columns) {
  const auto result = see({});
  EXPECT_EQ(result.code, kSuccess) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* part : {"2 layers of 2 heads, d_model 8", "7 tokens", "0 [CLS]  1 the  2 cat",
                           "layer  head  distance", "Layer ", "percent"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << '\n' << result.out;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 80u) << line;
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos) << "colour, but not on a terminal";
}

TEST_F(See, TheSameEveryTimeAndForAnyNumberOfThreads) {
  const int before = get_num_threads();
  const std::string once = see({"--json"}).out;
  EXPECT_EQ(see({"--json"}).out, once);
  EXPECT_EQ(see({"--json", "--threads", "1"}).out, once);
  EXPECT_EQ(see({"--json", "--threads", "3"}).out, once);
  set_num_threads(before);
}

TEST_F(See, DrawsTheHeadThatIsAskedFor) {
  EXPECT_NE(see({"--layer", "1", "--head", "0"}).out.find("Layer 1, head 0"), std::string::npos);
  EXPECT_NE(see({"--layer", "0"}).out.find("Layer 0, head "), std::string::npos);
  EXPECT_NE(see({"--head", "1"}).out.find(", head 1:"), std::string::npos);
  EXPECT_NE(see({"--color", "always"}).out.find('\x1b'), std::string::npos);
}

TEST_F(See, JsonHoldsWhatTheTextShows) {
  const auto json = nlohmann::json::parse(see({"--json", "--layer", "1", "--head", "1"}).out);
  EXPECT_EQ(json["tokens"],
            (std::vector<std::string>{"[CLS]", "the", "cat", "##s", "sat", ".", "[SEP]"}));
  EXPECT_EQ(json["ids"], (std::vector<int>{2, 5, 6, 11, 7, 10, 3}));
  EXPECT_EQ(json["truncated"], false);
  ASSERT_EQ(json["heads"].size(), 4u);
  EXPECT_EQ(json["heads"][3]["layer"], 1);
  EXPECT_EQ(json["shown"]["layer"], 1);
  EXPECT_EQ(json["shown"]["head"], 1);
  ASSERT_EQ(json["shown"]["weights"].size(), 7u);
  for (const auto& row : json["shown"]["weights"]) {
    double sum = 0;
    for (const double p : row) sum += p;
    EXPECT_NEAR(sum, 1, 1e-6);
  }
}

TEST_F(See, WritesEverythingToAFile) {
  for (const char* name : {"out.safetensors", "out.npz"}) {
    const auto result = see({"--out", folder_ / name});
    EXPECT_EQ(result.code, kSuccess) << result.err;
    const TensorFile file = TensorFile::open(folder_ / name);
    EXPECT_EQ(file.view("attention").shape, (Shape{2, 2, 7, 7}));
    EXPECT_EQ(file.view("hidden_states").shape, (Shape{3, 7, 8}));
    EXPECT_EQ(file.view("sentence_embedding").shape, Shape{8});
    EXPECT_EQ(file.view("ids").shape, Shape{7});
  }
  EXPECT_EQ(TensorFile::open(folder_ / "out.safetensors").metadata().at("tokens"),
            R"(["[CLS]","the","cat","##s","sat",".","[SEP]"])");
}

TEST_F(See, LongTextsAreCutWithANote) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "cat ";
  const auto result = see({}, text);
  EXPECT_NE(result.out.find("40 tokens; the text has 62"), std::string::npos) << result.out;
  EXPECT_EQ(nlohmann::json::parse(see({"--json"}, text).out)["truncated"], true);
}

TEST_F(See, TakesAnEmptyTextAndOneToken) {
  const auto result = see({}, "");
  EXPECT_EQ(result.code, kSuccess) << result.err;
  EXPECT_NE(result.out.find("2 tokens"), std::string::npos);
  EXPECT_EQ(see({}, "cat").code, kSuccess);
}

TEST_F(See, ErrorsAreOneLineWithTheRightCode) {
  struct Case {
    std::vector<std::string> args;
    int code;
    const char* part;
  };
  const std::string model = folder_ / "";
  const std::vector<Case> cases = {
      {{"see"}, kUsageError, "--model"},
      {{"see", "--model", model}, kUsageError, "--text"},
      {{"see", "--model", model, "--text", "a", "--layer", "2"}, kUsageError, "found 2"},
      {{"see", "--model", model, "--text", "a", "--head", "9"}, kUsageError, "0 to 1"},
      {{"see", "--model", model, "--text", "a", "--layer", "-1"}, kUsageError, "--layer"},
      {{"see", "--model", model, "--text", "a", "--color", "red"}, kUsageError, "--color"},
      {{"see", "--model", model, "--text", "a", "--out", "weights.txt"}, kUsageError, ".npz"},
      {{"see", "--model", model, "--text", "a", "--out", ""}, kUsageError, "--out"},
      {{"see", "--model", "", "--text", "a"}, kUsageError, "--model"},
      {{"see", "--model", model, "--text", "a\xFF"}, kInputError, "UTF-8"},
      {{"see", "--model", model + "nowhere", "--text", "a"}, kInputError, "nowhere"},
      {{"see", "--model", folder_ / "vocab.txt", "--text", "a"}, kInputError, "folder"},
      {{"see", "--model", model, "--text", std::string((1 << 20) + 1, 'a')},
       kInputError,
       "1048576"},
      {{"see", "--model", model, "--text", "a", "--out", folder_ / "no/such.npz"},
       kInputError,
       "such.npz"},
  };
  for (const Case& c : cases) {
    const auto result = run_cli(c.args);
    EXPECT_EQ(result.code, c.code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_NE(result.err.find(c.part), std::string::npos) << result.err;
  }
}

TEST_F(See, ATextThatCannotBeReadIsAnError) {
  const int before = dup(STDIN_FILENO), folder = open("/", O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(dup2(folder, STDIN_FILENO), STDIN_FILENO);
  const auto result = see({}, "-");
  dup2(before, STDIN_FILENO);
  close(before);
  close(folder);
  EXPECT_EQ(result.code, kInputError);
  EXPECT_NE(result.err.find("standard input: found "), std::string::npos) << result.err;
}

TEST_F(See, WeightsThatAreNoNumbersAreShownAsSuch) {
  TinyModel model;
  Tensor& query = model.tensors.at("encoder.layer.0.attention.self.query.weight");
  std::fill_n(query.data<float>(), query.size(), std::numeric_limits<float>::quiet_NaN());
  model.write(folder_);
  const auto json = nlohmann::json::parse(see({"--json"}).out);
  EXPECT_TRUE(json["heads"][0]["entropy_bits"].is_null());
  EXPECT_EQ(json["heads"][0]["mostly_on"], "mixed");
}

TEST_F(See, NoLineIsLongerThan80ColumnsForManyTokens) {
  TinyModel model;
  model.config =
      test::replaced(model.config, "position_embeddings\": 40", "position_embeddings\": 400");
  model.tensors.at("embeddings.position_embeddings.weight") = Tensor(DType::f32, {400, 8});
  model.write(folder_);
  std::string text;
  for (int i = 0; i < 398; ++i) text += "cat ";
  std::istringstream lines(see({"--from", "150"}, text).out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 80u) << line;
}

TEST_F(See, TokensOfAStrangerCannotTouchTheTerminal) {
  TinyModel model;
  model.vocabulary = test::replaced(model.vocabulary, "[CLS]", "[CLS\x1b[31m]");
  model.write(folder_);
  test::write_bytes(folder_ / "tokenizer_config.json", R"({"cls_token": "[CLS\u001b[31m]"})");
  const auto result = see({});
  EXPECT_EQ(result.code, kSuccess) << result.err;
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
}

class MinilmSee : public test::MinilmTest {};

TEST_F(MinilmSee, FindsWhatItRefersTo) {
  const auto result = run_cli({"see", "--model", test::model_folder(), "--text", text(0)});
  EXPECT_EQ(result.code, kSuccess) << result.err;
  EXPECT_NE(result.out.find("it>animal 67%"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("Layer 5, head 11"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace headwise::cli
