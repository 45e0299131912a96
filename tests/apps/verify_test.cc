// verify: all kernels hold, and a kernel that does not would be seen.
#include "cli/verify.h"

#include <array>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "cli/verify_kernels.h"
#include "gtest/gtest.h"
#include "headwise/plan.h"
#include "headwise/runtime.h"
#include "nlohmann/json.hpp"
#include "support/cli.h"

namespace headwise::cli {
namespace {

using test::run_cli;

TEST(Verify, EveryKernelOnEveryIsaHolds) {
  const std::string before = isa();
  const auto result = run_cli({"verify", "--json"});
  EXPECT_EQ(result.code, kSuccess) << result.out << result.err;
  EXPECT_EQ(isa(), before);
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["same_bits"], true);
  std::set<std::string> kernels, isas, dtypes;
  for (const auto& row : json["kernels"]) {
    kernels.insert(row["kernel"]);
    isas.insert(row["isa"]);
    dtypes.insert(row["dtype"]);
    EXPECT_EQ(row["ok"], true) << row;
    EXPECT_LE(row["largest_error"], row["bound"]) << row;
    EXPECT_GE(row["cases"], 5) << row;
  }
  std::set<std::string> all{"attention_weights", "matmul"};
  for (const std::string& name : available_kernels()) all.insert(name);
  EXPECT_EQ(kernels, all);
  const auto available = available_isas();
  EXPECT_EQ(isas, std::set<std::string>(available.begin(), available.end()));
  EXPECT_EQ(dtypes.size(), 4u);
  const auto other = kernels.count("bf16_dot") + kernels.count("bf16_amx");  // one ISA and dtype
  EXPECT_EQ(json["kernels"].size(), (kernels.size() - other) * isas.size() * dtypes.size() + other);
}

TEST(Verify, EveryGradientHolds) {
  const auto result = run_cli({"verify", "--gradients", "--json"});
  EXPECT_EQ(result.code, kSuccess) << result.out << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["ok"], true);
  std::set<std::string> gradients;
  for (const auto& row : json["gradients"]) {
    gradients.insert(row["gradient"]);
    EXPECT_LE(row["largest_error"], json["bound"]) << row;
    EXPECT_GE(row["elements"], 1) << row;
  }
  const std::set<std::string> all{"q",
                                  "k",
                                  "v",
                                  "mask",
                                  "second_mask",
                                  "query",
                                  "key",
                                  "value",
                                  "attn_mask",
                                  "key_padding_mask",
                                  "in_proj_weight",
                                  "in_proj_bias",
                                  "q_proj_weight",
                                  "k_proj_weight",
                                  "v_proj_weight",
                                  "bias_k",
                                  "bias_v",
                                  "qkv_proj.weight",
                                  "out_proj.weight",
                                  "out_proj.bias"};
  EXPECT_EQ(gradients, all);
  const auto text = run_cli({"verify", "--gradients", "--seed", "9"});
  EXPECT_EQ(text.code, kSuccess) << text.out;
  EXPECT_NE(text.out.find("All gradients are within 1e-07"), std::string::npos) << text.out;
}

TEST(Verify, OneIsaAlone) {
  const std::string name = available_isas().back();
  const auto result = run_cli({"verify", "--isa", name, "--seed", "3"});
  EXPECT_EQ(result.code, kSuccess) << result.out << result.err;
  for (const std::string& other : available_isas()) {
    if (other == name) continue;
    EXPECT_EQ(result.out.find(" " + other + " "), std::string::npos);
  }
}

TEST(Verify, ATallyKeepsTheValueNearestItsBound) {
  Tally tally;
  tally.add(1.0, 1.0, 0.0, 1.0);  // exact, where nothing is allowed
  tally.add(2.1, 2.0, 1.0, 2.0);
  tally.add(3.5, 3.0, 1.0, 10.0);
  tally.add(4.2, 4.0, 1.0, 1.0);
  EXPECT_TRUE(tally.ok);
  EXPECT_DOUBLE_EQ(tally.error, 0.05);
  EXPECT_DOUBLE_EQ(tally.bound, 0.1);
}

TEST(Verify, ATallySeesWhatIsWrong) {
  for (const auto& [found, expected, allowed] : std::vector<std::array<double, 3>>{
           {1.2, 1.0, 0.1}, {NAN, 1.0, 0.1}, {INFINITY, 1.0, 0.1}, {1e-30, 0.0, 0.0}}) {
    Tally tally;
    tally.add(found, expected, allowed, 1.0);
    tally.add(1.0, 1.0, 1.0, 1.0);
    EXPECT_FALSE(tally.ok) << found;
  }
}

}  // namespace
}  // namespace headwise::cli
