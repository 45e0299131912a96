#include "runtime/parallel_for.h"

#include <omp.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>

#include "core/check.h"
#include "runtime/creatable_threads.h"

namespace headwise {
namespace {

struct Runner {
  ParallelRunner run = nullptr;
  void* state = nullptr;
  int n_threads = 1;
};

std::mutex settings_mutex;
Runner lent_runner;  // guarded by settings_mutex
std::atomic<bool> has_lent_runner{false};
std::atomic<int> chosen_threads{0};   // 0: what OpenMP would use
std::atomic<bool> had_threads{true};  // when fork() was called
std::atomic<bool> forked{false};      // libgomp's pool does not survive fork()
std::atomic<bool> pool_busy{false};   // one caller at a time: others run on their own thread
thread_local bool inside_task = false;

// A pool may be the host's, made before our first call: its threads show in the process, but not to
// us. Only a process of one thread is sure to have none.
bool process_has_threads() {
  constexpr nlink_t kOneThread = 3;  // ".", ".." and its own directory
  struct stat tasks {};
  return stat("/proc/self/task", &tasks) != 0 || tasks.st_nlink != kOneThread;
}

void before_fork() {
  had_threads.store(process_has_threads());
  settings_mutex.lock();
}
void in_parent() { settings_mutex.unlock(); }
void in_child() {
  settings_mutex.unlock();
  if (had_threads.load()) forked.store(true);
  pool_busy.store(false);
}
const int registered = pthread_atfork(before_fork, in_parent, in_child);

// What the threads of one call share.
struct Job {
  ParallelTask task;
  void* context;
  std::size_t n;

  Job(std::size_t count, ParallelTask t, void* c) : task(t), context(c), n(count) {}

  std::atomic<std::size_t> next{0};
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error;

  void work() noexcept {
    const bool outer = inside_task;
    inside_task = true;
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) call(i);
    inside_task = outer;
  }
  void call(std::size_t i) noexcept {
    try {
      task(context, i);
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
    }
  }
};

// Always the whole team, even for a few tasks: libgomp ends the threads that a smaller region
// leaves out, and the next larger one would make them again (20 us each, without their scratch).
void run_with_openmp(Job& job, int n_threads) {
  n_threads = runtime::creatable_threads(n_threads);
#pragma omp parallel num_threads(n_threads)
  job.work();
}

void call_job(void* job, std::size_t i) {
  const bool outer = inside_task;
  inside_task = true;
  static_cast<Job*>(job)->call(i);
  inside_task = outer;
}

}  // namespace

int get_num_threads() {
  const int n = chosen_threads.load(std::memory_order_relaxed);
  return n > 0 ? n : std::max(1, omp_get_max_threads());
}

void set_num_threads(int n) {
  if (n < 1) core::throw_argument("n", std::to_string(n), "at least 1 thread");
  chosen_threads.store(n);
}

void set_parallel_runner(ParallelRunner run, void* state, int n_threads) {
  if (run != nullptr && n_threads < 1)
    core::throw_argument("n_threads", std::to_string(n_threads), "at least 1 thread");
  const std::lock_guard lock(settings_mutex);
  lent_runner = {run, state, n_threads};
  has_lent_runner.store(run != nullptr);
}

void runtime::run_tasks(std::size_t n, ParallelTask task, void* context) {
  if (n == 0) return;
  Job job(n, task, context);
  const int n_threads = get_num_threads();
  if (n < 2 || inside_task || n_threads < 2) {
    job.work();
  } else if (has_lent_runner.load(std::memory_order_acquire)) {
    Runner runner;
    {
      const std::lock_guard lock(settings_mutex);
      runner = lent_runner;
    }
    if (runner.run != nullptr && runner.n_threads > 1)
      runner.run(runner.state, n, call_job, &job);
    else
      job.work();
  } else if (omp_in_parallel() != 0 || forked.load() || pool_busy.exchange(true)) {
    job.work();
  } else {
    run_with_openmp(job, n_threads);
    pool_busy.store(false);
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace headwise
