// The program `headwise`.
#include <csignal>
#include <iostream>
#include <ostream>
#include <string>
#include <vector>

#include <unistd.h>

#include "cli/output.h"
#include "cli/program.h"

int main(int argc, char** argv) {
  using namespace headwise::cli;
  occupy_standard_descriptors();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is an error of write(), with a code
  DescriptorBuffer buffer(STDOUT_FILENO);
  std::ostream out(&buffer);
  out.exceptions(std::ios::badbit);
  const std::vector<std::string> args(argv + (argc > 0 ? 1 : 0), argv + argc);
  return run_program(args, out, std::cerr);
}
