// The call that `headwise bench` measures: random inputs, a check of some of its rows, and times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cli/shape_options.h"
#include "cli/verify_kernels.h"
#include "headwise/plan.h"
#include "headwise/tensor.h"

namespace headwise::cli {

// Seconds a call; each sample is the mean of a block of calls.
struct BenchTimes {
  std::vector<double> samples;  // ascending, never empty
  std::size_t calls_per_sample = 1;

  double best() const { return samples.front(); }
  double median() const { return quantile(0.5); }
  double spread() const;  // of the middle half, relative to the median
  double quantile(double q) const;
};

class BenchCall {
 public:
  // Throws UsageError where a size is 0 or the tensors do not fit into the memory of the machine.
  BenchCall(const AttentionShape& shape, std::uint64_t seed);

  AttentionPlan plan() const;
  void run();
  // Rows of the last run, spread over all of them, against the definition in double.
  Tally check() const;
  // Runs for about that long, at least three times.
  BenchTimes time(double seconds);

 private:
  AttentionShape shape_;
  Tensor q_, k_, v_, o_;
};

}  // namespace headwise::cli
