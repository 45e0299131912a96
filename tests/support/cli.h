// Runs a verb inside the test's process.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "cli/program.h"

namespace headwise::test {

struct CliResult {
  int code = -1;
  std::string out, err;
};

inline CliResult run_cli(const std::vector<std::string>& args) {
  std::ostringstream out, err;
  const int code = cli::run_program(args, out, err);
  return {code, out.str(), err.str()};
}

}  // namespace headwise::test
