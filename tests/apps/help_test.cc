// --help teaches: every verb has a purpose, and its examples work as they stand.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "cli/common.h"
#include "gtest/gtest.h"
#include "headwise/io.h"
#include "headwise/random.h"
#include "support/cli.h"

namespace headwise::cli {
namespace {

using test::run_cli;

// The commands after "Examples:", continued lines joined, without the program's name.
std::vector<std::vector<std::string>> examples_of(const std::string& help) {
  std::string text = help.substr(help.find("Examples:\n") + 10);
  for (std::size_t at; (at = text.find("\\\n")) != std::string::npos;) text.replace(at, 2, "");
  std::vector<std::vector<std::string>> examples;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> args;
    for (std::string word; words >> word;) args.push_back(word);
    while (!args.empty() && args[0].find('=') != std::string::npos) args.erase(args.begin());
    if (!args.empty() && args[0] == "headwise") examples.emplace_back(args.begin() + 1, args.end());
  }
  return examples;
}

// A folder that holds the files which the examples name.
class Help : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "helpXXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(folder_);
    Generator generator(1);
    const auto draw = [&](Shape shape) { return randn(shape, generator); };
    save_npy("x.npy", draw({2, 4, 8}));
    save_npy("hidden.npy", draw({1, 5, 24}));
    for (const char* name : {"q.npy", "k.npy", "v.npy"}) save_npy(name, draw({1, 2, 6, 4}));
    const std::string block = "encoder.layer.0.attention.";
    const Tensor square = draw({24, 24}), row = draw({24});
    std::vector<NamedView> tensors;
    for (const char* part : {"self.query", "self.key", "self.value", "output.dense"}) {
      tensors.push_back({block + part + ".weight", square.view()});
      tensors.push_back({block + part + ".bias", row.view()});
    }
    save_safetensors("model.safetensors", tensors);
    save_npz("weights.npz", tensors);
  }
  void TearDown() override {
    std::filesystem::current_path(before_);
    std::filesystem::remove_all(folder_);
  }

  std::filesystem::path folder_, before_;
};

TEST_F(Help, ExamplesWork) {
  for (const std::vector<std::string>& verb :
       std::vector<std::vector<std::string>>{{"run"},
                                             {"inspect"},
                                             {"lesson"},
                                             {"lesson", "scale"},
                                             {"lesson", "heads"},
                                             {"lesson", "byhand"},
                                             {"verify"},
                                             {"bench"},
                                             {"info"}}) {
    SCOPED_TRACE(verb.back());
    std::vector<std::string> args = verb;
    args.push_back("--help");
    const auto help = run_cli(args);
    EXPECT_EQ(help.code, kSuccess);
    const auto examples = examples_of(help.out);
    EXPECT_GE(examples.size(), 2u) << help.out;
    for (const auto& example : examples) {
      const auto result = run_cli(example);
      EXPECT_EQ(result.code, kSuccess) << testing::PrintToString(example) << result.err;
      EXPECT_NE(result.out, "");
    }
  }
}

TEST_F(Help, EveryVerbIsListedAndExplained) {
  const std::string help = run_cli({"--help"}).out;
  for (const char* verb : {"see", "run", "inspect", "lesson", "verify", "bench", "info"}) {
    EXPECT_NE(help.find(std::string("\n  ") + verb + " "), std::string::npos) << verb;
    const std::string page = run_cli({verb, "--help"}).out;
    EXPECT_NE(page.find("Examples:"), std::string::npos) << verb;
    EXPECT_EQ(page.find("Excludes"), std::string::npos) << verb;
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 100u) << line;
  }
  for (const char* code : {"  0  ", "  1  ", "  2  ", "  3  ", "  4  ", "  5  "})
    EXPECT_NE(help.find(code), std::string::npos) << code;
}

}  // namespace
}  // namespace headwise::cli
