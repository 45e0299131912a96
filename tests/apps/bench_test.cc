// bench: a right answer is timed, a wrong one is not, and every number follows from the others.
#include "cli/bench.h"

#include <string>
#include <vector>

#include "cli/bench_call.h"
#include "gtest/gtest.h"
#include "headwise/runtime.h"
#include "nlohmann/json.hpp"
#include "support/cli.h"

namespace headwise::cli {
namespace {

using test::run_cli;

nlohmann::json bench(std::vector<std::string> args) {
  args.insert(args.begin(), {"bench", "--seconds", "0", "--json"});
  const auto result = run_cli(args);
  EXPECT_EQ(result.code, kSuccess) << result.err;
  return nlohmann::json::parse(result.out);
}

TEST(Bench, EveryDtypeAndShapeIsCheckedAndTimed) {
  for (const char* dtype : {"f32", "f64", "bf16", "f16"})
    for (const std::vector<std::string>& shape : std::vector<std::vector<std::string>>{
             {"1,1,1,1,1"},
             {"2,3,17,33,8"},
             {"1,6,65,130,40,24", "--kv-heads", "2", "--causal"},
             {"2,4,5,600,64", "--causal", "--bottom-right"},
             {"1,2,9,4,16", "--causal", "--bottom-right"}}) {  // queries that see no key
      std::vector<std::string> args{"--no-limits", "--dtype", dtype, "--shape"};
      args.insert(args.end(), shape.begin(), shape.end());
      const auto json = bench(args);
      SCOPED_TRACE(json.dump());
      EXPECT_EQ(json["ok"], true);
      EXPECT_LE(json["largest_error"], json["bound"]);
      EXPECT_GT(json["best_seconds"], 0.0);
      EXPECT_LE(json["best_seconds"], json["median_seconds"]);
      EXPECT_GE(json["samples"], 3);
      EXPECT_DOUBLE_EQ(json["flops_per_second"],
                       json["flops"].get<double>() / json["best_seconds"].get<double>());
      EXPECT_TRUE(json["share_of_flops"].is_null());
    }
}

TEST(Bench, ChecksRowsFromTheFirstToTheLast) {
  EXPECT_EQ(bench({"--no-limits", "--shape", "1,2,3,5,8"})["checked_rows"], 6);
  EXPECT_EQ(bench({"--no-limits", "--shape", "2,8,16,16,8"})["checked_rows"], 64);
}

TEST(Bench, SeesAWrongAnswer) {
  ShapeOptions options;
  options.text = "1,2,4,5,8";
  BenchCall call(attention_shape(options), 0);
  EXPECT_FALSE(call.check().ok);  // nothing has run: the output holds no answer
  call.run();
  EXPECT_TRUE(call.check().ok);
}

TEST(Bench, ShowsSharesOfTheMachinesLimits) {
  const auto result = run_cli({"bench", "--shape", "1,2,64,64,32", "--seconds", "0"});
  EXPECT_EQ(result.code, kSuccess) << result.err;
  for (const char* word : {"shape ", "kernel ", "check ", "64 rows", " best, ", " median, ",
                           " GFLOP/s", " GB/s that reads reach"})
    EXPECT_NE(result.out.find(word), std::string::npos) << word << '\n' << result.out;
}

TEST(Bench, StatisticsAreOfSortedSamples) {
  const BenchTimes times{{1, 2, 3, 4, 5}, 1};
  EXPECT_EQ(times.best(), 1);
  EXPECT_EQ(times.median(), 3);
  EXPECT_DOUBLE_EQ(times.spread(), 2.0 / 3.0);
  const BenchTimes one{{7}, 1};
  EXPECT_EQ(one.median(), 7);
  EXPECT_EQ(one.spread(), 0);
}

TEST(Bench, WrongCommandLines) {
  struct Wrong {
    std::vector<std::string> args;
    const char* message;
  };
  for (const auto& [args, message] : std::vector<Wrong>{
           {{}, "--shape"},
           {{"--shape", "1,2,3"}, "found \"1,2,3\", expected B,h,T_q,T_k,d_head"},
           {{"--shape", "1,0,3,4,5"}, "expected sizes of at least 1"},
           {{"--shape", "1,6,3,4,5", "--kv-heads", "4"}, "found"},
           {{"--shape", "1,1,3,4,5", "--kv-heads", "4"}, "--kv-heads: found 4, expected at most"},
           {{"--shape", "9999999,9999,9999,4,8"}, "GiB of this machine"},
           {{"--shape", "1,1,1,1,1", "--seconds", "-1"}, "--seconds: found -1, expected"},
           {{"--shape", "1,1,1,1,1", "--seconds", "nan"}, "--seconds: found nan, expected"},
           {{"--shape", "1,1,1,1,1", "--dtype", "u8"}, "expected f32, f64, bf16 or f16"}}) {
    std::vector<std::string> line{"bench"};
    line.insert(line.end(), args.begin(), args.end());
    const auto result = run_cli(line);
    EXPECT_EQ(result.code, kUsageError) << result.err;
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

}  // namespace
}  // namespace headwise::cli
