// The command line as a function: tests call it, main.cc wraps it.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace headwise::cli {

// Parses `args` (without the program's name), runs the chosen verb and returns an ExitCode. Results
// go to `out`, at most one line to `err`. Throws nothing.
int run_program(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace headwise::cli
