// `headwise inspect FILE`: the tensors of a file and the attention blocks among them.
#pragma once

#include "cli/common.h"

namespace headwise::cli {

void add_inspect(CLI::App& program, Action& action);

}  // namespace headwise::cli
