// The instruction set that HEADWISE_ISA asks for.
#pragma once

namespace headwise::kernels {

// Throws ArgumentError when HEADWISE_ISA names an instruction set that this build or CPU doesn't
// have and set_isa has not been called since. Public entry points call it before any work, for
// nothing can be thrown while the library is being loaded; it costs one load.
void require_valid_isa();

}  // namespace headwise::kernels
