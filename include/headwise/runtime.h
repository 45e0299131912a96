// Threads and instruction sets of the process.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/export.h"

namespace headwise {

// How many threads a call may use; at first OMP_NUM_THREADS or the number of usable cores.
// Results do not depend on it.
HEADWISE_API int get_num_threads();
HEADWISE_API void set_num_threads(int n);  // throws ArgumentError when n < 1

// Instruction sets by name, best first: "avx512", "avx2", "sse4", "scalar" on x86; "neon" on Arm;
// "wasm". The environment variable HEADWISE_ISA chooses one for the process.
HEADWISE_API std::vector<std::string> available_isas();  // compiled in and supported by this CPU
HEADWISE_API std::string isa();                          // the one in use
HEADWISE_API void set_isa(std::string_view name);        // "auto": the best; throws ArgumentError

// A host may lend its threads: run(state, n, task, context) must call task(context, i) once for
// each i < n, on any threads, and return when all are done; it may not call headwise itself.
// n_threads is how many it has: with 1, or after set_num_threads(1), calls stay on their own
// thread. nullptr brings the built-in runner back.
using ParallelTask = void (*)(void* context, std::size_t index);
using ParallelRunner = void (*)(void* state, std::size_t n, ParallelTask task, void* context);
HEADWISE_API void set_parallel_runner(ParallelRunner run, void* state, int n_threads);

}  // namespace headwise
