// The program as a whole: exit codes, one line per error, output that cannot be written.
#include "cli/program.h"

#include <algorithm>
#include <cstdlib>

#include "cli/common.h"
#include "gtest/gtest.h"
#include "headwise/version.h"
#include "nlohmann/json.hpp"
#include "support/cli.h"
#include "support/process.h"

namespace headwise::cli {
namespace {

using test::run_cli;
using test::run_process;

// What every failure owes its reader.
void expect_one_line(const std::string& err) {
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  EXPECT_TRUE(err.starts_with("headwise: ")) << err;
  EXPECT_LE(err.size(), 501u) << err;
  for (const char* trace : {"bad_alloc", "std::", "::", "_M_", "what()"})
    EXPECT_EQ(err.find(trace), std::string::npos) << err;
}

TEST(Program, UsageErrorsAreOneLineAndExitCode2) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {""},
      {"frobnicate"},
      {"frobnicate", "--help"},
      {"--frobnicate"},
      {"info", "--frobnicate"},
      {"info", "extra"},
      {"info", "verify"},
      {"info", "--threads"},
      {"info", "--threads", "0"},
      {"info", "--threads", "-1"},
      {"info", "--threads", "2x"},
      {"info", "--threads", "99999999999999999999999"},
      {"info", "--threads", "1", "--threads", "2"},
      {"info", "--isa", "mmx"},
      {"info", "--kernel", "thunder"},
      {"info", "--explain"},
      {"info", "--explain", "1,2,3"},
      {"info", "--explain", "1,2,3,4,x"},
      {"info", "--explain", "1,2,3,4,5,6,7"},
      {"info", "--explain", "1,2,3,4,99999999999999999999"},
      {"info", "--explain", "1,2,3,4,5", "--kv-heads", "3"},
      {"info", "--explain", "1,2,3,4,5", "--dtype", "int8"},
      {"info", "--explain", "1,2,3,4,5", "--bottom-right"},
      {"info", "--causal"},
      {"inspect"},
      {"inspect", ""},
      {"inspect", "a", "b"},
      {"two\nlines\x1b[31m"},
      {std::string(100000, 'x')},
      {"info", "--" + std::string(100000, 'x')},
  };
  for (const auto& args : wrong) {
    const auto result = run_cli(args);
    SCOPED_TRACE(args.empty() ? "no arguments" : args.back().substr(0, 80));
    EXPECT_EQ(result.code, kUsageError);
    EXPECT_EQ(result.out, "");
    expect_one_line(result.err);
  }
}

TEST(Program, HelpAndVersionGoToStandardOutput) {
  for (const auto& args : std::vector<std::vector<std::string>>{{"--help"}, {"info", "--help"}}) {
    const auto result = run_cli(args);
    EXPECT_EQ(result.code, kSuccess);
    EXPECT_NE(result.out.find("headwise"), std::string::npos);
    EXPECT_EQ(result.err, "");
  }
  EXPECT_EQ(run_cli({"--version"}).out, "headwise " HEADWISE_VERSION "\n");
}

TEST(Program, LeadingZerosAreDecimal) {
  EXPECT_EQ(run_cli({"info", "--threads", "010"}).code, kSuccess);
  EXPECT_NE(run_cli({"info"}).out.find("threads           10\n"), std::string::npos);
  EXPECT_EQ(run_cli({"info", "--threads", "1"}).code, kSuccess);
}

TEST(Program, AWrongIsaOrKernelInTheEnvironmentIsReported) {
  for (const char* variable : {"HEADWISE_ISA", "HEADWISE_KERNEL"}) {
    const char* before = std::getenv(variable);
    const std::string kept = before == nullptr ? "" : before;
    ::setenv(variable, "mmx", 1);
    const auto result = run_process(HEADWISE_PROGRAM, {"info"});
    ::setenv(variable, kept.c_str(), 1);
    EXPECT_EQ(result.code, kInputError);
    expect_one_line(result.err);
  }
}

TEST(Program, InfoExplainsACall) {
  const auto text = run_cli({"info", "--explain", "1,8,1024,1024,64", "--causal"});
  EXPECT_EQ(text.code, kSuccess);
  EXPECT_NE(text.out.find("kernel            flash: "), std::string::npos) << text.out;
  const auto json = nlohmann::json::parse(
      run_cli({"info", "--explain", "2,8,5,7,16,4", "--kv-heads", "2", "--json"}).out)["explain"];
  EXPECT_EQ(json["flops"], 2.0 * (16 + 4) * 2 * 8 * 5 * 7);
  EXPECT_EQ(json["bytes"], 4.0 * (2 * 8 * 5 * (16 + 4) + 2 * 2 * 7 * (16 + 4)));
  EXPECT_GT(json["scratch_bytes"], 0);
}

TEST(Program, RunsAsAProcess) {
  const auto good = run_process(HEADWISE_PROGRAM, {"info"});
  EXPECT_EQ(good.code, kSuccess);
  EXPECT_NE(good.out.find(HEADWISE_VERSION), std::string::npos);
  EXPECT_EQ(good.err, "");
  const auto bad = run_process(HEADWISE_PROGRAM, {"frobnicate"});
  EXPECT_EQ(bad.code, kUsageError);
  EXPECT_EQ(bad.out, "");
  expect_one_line(bad.err);
}

TEST(Program, OutputThatCannotBeWrittenHasItsOwnExitCode) {
  for (const auto to : {test::Stdout::full_disk, test::Stdout::closed}) {
    const auto result = run_process(HEADWISE_PROGRAM, {"info"}, to);
    EXPECT_EQ(result.code, kOutputError);
    expect_one_line(result.err);
  }
  const auto quiet = run_process(HEADWISE_PROGRAM, {"info"}, test::Stdout::reader_left);
  EXPECT_EQ(quiet.code, kOutputError);
  EXPECT_EQ(quiet.err, "");
}

}  // namespace
}  // namespace headwise::cli
