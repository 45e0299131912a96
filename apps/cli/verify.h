// `headwise verify`: every kernel on every instruction set of this CPU against its definition.
#pragma once

#include "cli/common.h"

namespace headwise::cli {

void add_verify(CLI::App& program, Action& action);

}  // namespace headwise::cli
