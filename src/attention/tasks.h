// Runs the tasks of a plan.
#pragma once

#include <cstddef>

#include "runtime/parallel_for.h"

namespace headwise::attention {

template <typename F>
void for_each_task(std::size_t n, bool on_calling_thread, F&& task) {
  if (on_calling_thread)
    for (std::size_t i = 0; i < n; ++i) task(i);
  else
    runtime::parallel_for(n, task);
}

}  // namespace headwise::attention
