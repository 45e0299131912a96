// inspect on good files of every form, and on files that nobody should believe.
#include "cli/inspect.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/io.h"
#include "nlohmann/json.hpp"
#include "support/cli.h"

namespace headwise::cli {
namespace {

using test::CliResult;
using test::run_cli;

class Inspect : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "inspectXXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // A file with these tensors of zeros.
  std::string save(const std::string& name,
                   const std::vector<std::pair<std::string, Shape>>& tensors) {
    std::vector<Tensor> data;
    std::vector<NamedView> views;
    for (const auto& [key, shape] : tensors) data.push_back(Tensor::zeros(DType::f32, shape));
    for (std::size_t i = 0; i < data.size(); ++i)
      views.push_back({tensors[i].first, data[i].view()});
    save_safetensors(path(name), views);
    return path(name);
  }

  static void expect_refused(const CliResult& result) {
    EXPECT_EQ(result.code, kInputError) << result.out;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_LE(result.err.size(), 520u) << result.err;
    EXPECT_EQ(result.err.find("std::"), std::string::npos) << result.err;
  }

  std::filesystem::path folder_;
};

std::string with_header(const std::string& json, const std::string& data = "") {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    bytes[i] = static_cast<char>((std::uint64_t{json.size()} >> (8 * i)) & 0xffu);
  return bytes + json + data;
}

TEST_F(Inspect, FindsABlockAndAddsItUp) {
  const auto file = save("module.safetensors", {{"in_proj_weight", {24, 8}},
                                                {"in_proj_bias", {24}},
                                                {"out_proj.weight", {8, 8}},
                                                {"out_proj.bias", {8}}});
  const auto text = run_cli({"inspect", file});
  EXPECT_EQ(text.code, kSuccess) << text.err;
  EXPECT_NE(text.out.find("4*8^2 + 4*8"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("288"), std::string::npos) << text.out;

  const auto json = nlohmann::json::parse(run_cli({"inspect", file, "--json"}).out);
  EXPECT_EQ(json["tensor_count"], 4);
  EXPECT_EQ(json["tensors"][0]["shape"], (std::vector<int>{24, 8}));
  const auto& block = json["attention_blocks"].at(0);
  EXPECT_EQ(block["form"], "torch_packed");
  EXPECT_EQ(block["parameter_count"], 4 * 8 * 8 + 4 * 8);
  EXPECT_EQ(block["adds_up"], true);
}

TEST_F(Inspect, AddsUpOtherForms) {
  const auto fused = save("fused.safetensors",
                          {{"attn.qkv_proj.weight", {48, 16}}, {"attn.out_proj.weight", {16, 16}}});
  auto json = nlohmann::json::parse(run_cli({"inspect", fused, "--json"}).out);
  EXPECT_EQ(json["attention_blocks"].at(0)["form"], "fused");
  EXPECT_EQ(json["attention_blocks"][0]["parameter_count"], 4 * 16 * 16);
  EXPECT_EQ(json["attention_blocks"][0]["formula"], "4*16^2");
  EXPECT_EQ(json["attention_blocks"][0]["adds_up"], true);

  const auto separate = save("separate.safetensors", {{"q_proj_weight", {8, 8}},
                                                      {"k_proj_weight", {8, 5}},
                                                      {"v_proj_weight", {8, 3}},
                                                      {"out_proj.weight", {8, 8}}});
  json = nlohmann::json::parse(run_cli({"inspect", separate, "--json"}).out);
  EXPECT_EQ(json["attention_blocks"].at(0)["form"], "torch_separate");
  EXPECT_EQ(json["attention_blocks"][0]["formula"], "8*8 + 8*5 + 8*3 + 8*8");
  EXPECT_EQ(json["attention_blocks"][0]["adds_up"], true);
}

TEST_F(Inspect, AFileWithoutBlocksIsNoError) {
  const auto file = save("other.safetensors", {{"weight", {2, 3}}, {"empty", {0, 3}}, {"s", {}}});
  const auto result = run_cli({"inspect", file});
  EXPECT_EQ(result.code, kSuccess);
  EXPECT_NE(result.out.find("(2, 3)"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("0 attention blocks found"), std::string::npos) << result.out;
}

TEST_F(Inspect, ListsTheFirstFiftyUnlessAsked) {
  std::vector<std::pair<std::string, Shape>> tensors;
  for (int i = 0; i < 57; ++i) tensors.push_back({"t" + std::to_string(100 + i), {1}});
  const auto file = save("many.safetensors", tensors);
  const auto first = run_cli({"inspect", file}).out;
  EXPECT_NE(first.find("57 tensors"), std::string::npos);
  EXPECT_NE(first.find("t149"), std::string::npos);
  EXPECT_EQ(first.find("t150"), std::string::npos);
  EXPECT_NE(first.find("7 more"), std::string::npos);
  EXPECT_NE(run_cli({"inspect", "--all", file}).out.find("t156"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(run_cli({"inspect", "--json", file}).out)["tensors"].size(), 57u);
}

TEST_F(Inspect, NamesFromTheFileCannotWriteToTheTerminal) {
  const auto file =
      save("names.safetensors",
           {{"a\x1b[31m\nb", {1}}, {"\u202etxet", {1}}, {std::string(5000, 'n'), {1}}});
  const auto result = run_cli({"inspect", file});
  EXPECT_EQ(result.code, kSuccess);
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(result.out.find("\u202e"), std::string::npos);
  EXPECT_LT(result.out.size(), 1000u);
  const auto json = run_cli({"inspect", "--json", file}).out;
  EXPECT_EQ(json.find('\x1b'), std::string::npos);
  EXPECT_TRUE(std::all_of(json.begin(), json.end(), [](char c) { return c >= 0; }));
  EXPECT_EQ(nlohmann::json::parse(json)["tensors"].size(), 3u);
}

TEST_F(Inspect, ReadsNpy) {
  const Tensor x = Tensor::zeros(DType::f64, {3, 4});
  save_npy(path("x.npy"), x);
  const auto result = run_cli({"inspect", path("x.npy")});
  EXPECT_EQ(result.code, kSuccess) << result.err;
  EXPECT_NE(result.out.find("(3, 4)"), std::string::npos) << result.out;
}

TEST_F(Inspect, RefusesHostileFiles) {
  const std::string deep(200000, '[');
  const std::vector<std::string> files = {
      write("empty", ""),
      write("text", "hello\n"),
      write("seven", std::string(7, '\0')),
      write("length.safetensors", std::string(8, '\xff') + "{}"),
      write("past.safetensors", with_header("{}").replace(0, 1, "\x7f")),
      write("json.safetensors", with_header("{\"a\":")),
      write("list.safetensors", with_header("[]")),
      write("deep.safetensors", with_header("{\"a\":" + deep)),
      write("offsets.safetensors",
            with_header(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "1234")),
      write("overflow.safetensors",
            with_header(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],)"
                        R"("data_offsets":[0,4]}})",
                        "1234")),
      write("negative.safetensors",
            with_header(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234")),
      write("dtype.safetensors", with_header("{\"a\":{\"dtype\":\"\x1b[2J\\u202e\",\"shape\":[1],"
                                             "\"data_offsets\":[0,4]}}",
                                             "1234")),
      write("twice.safetensors",
            with_header(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                        "12")),
      write("magic.npy", "\x93NUMPY"),
      write("version.npy", std::string("\x93NUMPY\x09\x00\x10\x00", 10)),
      write("header.npy", std::string("\x93NUMPY\x01\x00\xff\xff", 10) + "{'descr': '<f4'"),
      write("zip.npz", "PK\x03\x04 and nothing else"),
      folder_.string(),
      path("missing"),
      "/dev/zero",
      std::string("/dev/null"),
  };
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    expect_refused(run_cli({"inspect", file}));
    expect_refused(run_cli({"inspect", "--json", file}));
  }
}

TEST_F(Inspect, NeverWaitsForAPipe) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  expect_refused(run_cli({"inspect", path("pipe")}));
  std::filesystem::create_symlink(path("nowhere"), path("dangling"));
  expect_refused(run_cli({"inspect", path("dangling")}));
  std::filesystem::create_symlink(path("loop"), path("loop"));
  expect_refused(run_cli({"inspect", path("loop")}));
}

// Damaged copies of good files: any answer but a crash or a code that is neither 0 nor 3.
TEST_F(Inspect, SurvivesDamage) {
  save("module.safetensors", {{"in_proj_weight", {24, 8}}, {"out_proj.weight", {8, 8}}});
  const Tensor x = Tensor::zeros(DType::f32, {3, 4});
  save_npy(path("x.npy"), x);
  std::mt19937 random(1);
  for (const char* name : {"module.safetensors", "x.npy"}) {
    const std::string good = read(path(name));
    const std::size_t header = std::min<std::size_t>(good.size(), 300);
    for (int i = 0; i < 400; ++i) {
      std::string bad = good;
      if (i % 4 == 0) bad.resize(random() % bad.size());
      for (std::uint32_t n = random() % 4; n > 0 && !bad.empty(); --n)
        bad[random() % std::min(bad.size(), header)] = static_cast<char>(random());
      const auto result = run_cli({"inspect", write("damaged", bad)});
      if (result.code != kSuccess) expect_refused(result);
    }
  }
}

}  // namespace
}  // namespace headwise::cli
