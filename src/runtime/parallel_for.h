// The library's only way to use more than one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

#include "headwise/runtime.h"

namespace headwise::runtime {

// Calls task(context, i) once for every i < n, on up to get_num_threads() threads, and returns when
// all are done. Indices start in ascending order, so put the longest tasks first. Runs on the
// calling thread alone inside another parallel region, in a forked child, and when n < 2. An
// exception of a task is thrown again here, after the other tasks have ended.
void run_tasks(std::size_t n, ParallelTask task, void* context);

template <typename F>
void parallel_for(std::size_t n, F&& body) {
  run_tasks(
      n,
      [](void* context, std::size_t i) { (*static_cast<std::remove_reference_t<F>*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

}  // namespace headwise::runtime
