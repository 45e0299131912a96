// `headwise info`: what this build is and what it found on this machine.
#pragma once

#include "cli/common.h"

namespace headwise::cli {

void add_info(CLI::App& program, Action& action);

}  // namespace headwise::cli
