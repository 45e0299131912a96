// The checks behind `headwise verify`: kernels against the same definitions in double that the
// tests use (tests/support/reference.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "headwise/dtype.h"

namespace headwise::cli {

// How close results came to what rounding allows.
struct Tally {
  std::size_t n_cases = 0;
  double error = 0, bound = 0;  // relative; of the value that used most of its bound
  bool ok = true;

  // `scale`: the size of the terms that were summed; `allowed`: how far `found` may be off.
  void add(double found, double expected, double allowed, double scale);

 private:
  double used_ = -1;  // share of the bound
};

// How far an output of an attention kernel may be off. `magnitude` is the sum of the sizes of its
// terms p v.
double attention_bound(const std::string& kernel, DType dtype, std::size_t T_k, std::size_t d_head,
                       double expected, double magnitude);

struct KernelReport {
  std::string kernel, isa;
  DType dtype = DType::f32;
  Tally tally;
  std::string bytes;  // all results, to compare instruction sets
};

// One report for each instruction set on which the kernel computes this dtype. Leaves the last
// instruction set and the kernel chosen.
std::vector<KernelReport> verify_attention(DType dtype, const std::string& kernel,
                                           const std::vector<std::string>& isas,
                                           std::uint64_t seed);
std::vector<KernelReport> verify_matmul(DType dtype, const std::vector<std::string>& isas,
                                        std::uint64_t seed);

}  // namespace headwise::cli
