#include "runtime/creatable_threads.h"

#include <semaphore.h>

#include <algorithm>
#include <limits>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace headwise::runtime {
namespace {

// Makes up to n threads that exist at once; returns how many there were.
int make_threads(int n) {
  std::vector<std::thread> threads;
  sem_t go;
  sem_init(&go, 0, 0);
  try {
    threads.reserve(static_cast<std::size_t>(n));
    while (threads.size() < static_cast<std::size_t>(n))
      threads.emplace_back([&go] {
        while (sem_wait(&go) != 0) {  // a signal came
        }
      });
  } catch (const std::system_error&) {  // no more of them
  } catch (const std::bad_alloc&) {
  }
  for (std::size_t i = 0; i < threads.size(); ++i) sem_post(&go);
  for (std::thread& thread : threads) thread.join();
  sem_destroy(&go);
  return static_cast<int>(threads.size());
}

}  // namespace

int creatable_threads(int wanted) {
  thread_local int known = 1, limit = std::numeric_limits<int>::max();  // of this caller's pool
  wanted = std::min(wanted, limit);
  if (wanted <= known) return wanted;
  const int made = make_threads(wanted - 1);
  known = wanted;
  // Where the system's limit shows, half of what is left stays for memory and for others.
  if (made < wanted - 1) known = limit = std::max(1, made / 2);
  return known;
}

}  // namespace headwise::runtime
