// `headwise bench`: one call of attention, checked and then timed.
#pragma once

#include "cli/common.h"

namespace headwise::cli {

void add_bench(CLI::App& program, Action& action);

}  // namespace headwise::cli
