// Which kernel a call of scaled_dot_product_attention runs, and what it will take.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/attention.h"
#include "headwise/export.h"

namespace headwise {

// Attention kernels by name, those that this CPU can run: "flash" takes blocks of queries against
// all keys, "decode" a few queries of all heads that share their keys. The environment variable
// HEADWISE_KERNEL chooses one for the process.
HEADWISE_API std::vector<std::string> available_kernels();
HEADWISE_API std::string kernel();  // the one that was asked for, or "auto"
// "auto" lets every call's sizes decide. A call that the kernel cannot compute runs as under
// "auto". Throws ArgumentError for another name.
HEADWISE_API void set_kernel(std::string_view name);

struct AttentionPlan {
  std::string kernel;
  std::string reason;         // why this one, in a sentence
  std::size_t n_tasks;        // what threads share
  int n_threads;              // that take part
  double flops;               // 2 (d_head + d_v) for each query and key that causal lets it see
  double bytes;               // of q, k, v, o and the masks, each element once
  std::size_t scratch_bytes;  // working memory of all threads together
};

// The plan of a call that returns o alone. Views as for scaled_dot_product_attention and checked
// as there, but nothing is read: their data may be null.
HEADWISE_API AttentionPlan explain_attention(const ConstTensorView& q, const ConstTensorView& k,
                                             const ConstTensorView& v,
                                             const AttentionOptions& options = {});

}  // namespace headwise
