#include "attention/plan.h"

#include <algorithm>

#include "attention/decode.h"
#include "kernels/bf16/amx_forward.h"
#include "kernels/decode/flash_decode.h"
#include "kernels/flash_forward.h"
#include "kernels/tiles.h"

namespace headwise::attention {
namespace {

double multiply_adds(const Problem& p, Kernel kernel, const Outputs& out) {
  const bool weights = out.weights.data != nullptr || out.average_weights.data != nullptr;
  // A score costs about as much again in exp, max and rescaling as 16 multiply-adds.
  const double each =
      static_cast<double>(p.d_head) * (weights ? 2 : 1) + static_cast<double>(p.d_v) + 16;
  // Decode's sums across lanes and loads: 4.5 ns a score at d 8, 8 ns at d 128, cached.
  const double slower = kernel == Kernel::decode ? 200 : 0;
  return n_visible_pairs(p) * (each + slower);
}

// Bytes of K and V that are worth a task of their own: 3 us or more.
constexpr double kDecodeTaskBytes = 1 << 17;
// More tasks than this serve no machine, but states take memory.
constexpr std::size_t kMostDecodeTasks = 1024;

DecodeCut cut_decode(const Problem& p) {
  DecodeCut cut;
  const std::size_t rows = p.group * p.T_q;
  cut.n_blocks = rows / kernels::kMostDecodeRows + (rows % kernels::kMostDecodeRows != 0 ? 1 : 0);
  const std::size_t n_leaves =
      std::max<std::size_t>((p.T_k + kernels::kLeafK - 1) / kernels::kLeafK, 1);
  const double leaf_bytes = static_cast<double>(kernels::kLeafK) *
                            static_cast<double>((p.d_head + p.d_v) * size_of(p.dtype));
  const std::size_t n_pairs = std::max<std::size_t>(
      p.n_batch * (p.n_heads / std::max<std::size_t>(p.group, 1)) * cut.n_blocks, 1);
  const auto too_many = [&] {
    return static_cast<double>(cut.n_leaves) * leaf_bytes < kDecodeTaskBytes ||
           n_leaves / cut.n_leaves > kMostDecodeTasks / n_pairs;
  };
  while (cut.n_leaves < n_leaves && too_many()) cut.n_leaves *= 2;
  cut.n_parts = (n_leaves + cut.n_leaves - 1) / cut.n_leaves;
  return cut;
}

// Queries of a task. Groups of blocks share work (of few keys, bringing them into lanes), so that
// they are as large as leaves a number of tasks that can be dealt out evenly; their bits don't
// depend on it.
std::size_t block_queries(const Problem& p, Kernel kernel) {
  const std::size_t block = std::max<std::size_t>(kernels::flash_forward_block(p.dtype), 1);
  std::size_t most = 1;
  if (kernel == Kernel::bf16_amx) most = kernels::kAmxGroup / block;
  if (kernel == Kernel::flash && p.T_k <= kernels::kFewKeys) most = 8;
  constexpr std::size_t kFewestTasks = 16;
  const std::size_t n_blocks = (p.T_q + block - 1) / block;
  const std::size_t n_heads = p.n_batch * p.n_heads;
  const std::size_t fair = n_blocks * std::min(n_heads, kFewestTasks) / kFewestTasks;
  return block * std::clamp<std::size_t>(fair, 1, most);
}

}  // namespace

Plan make_plan(const Problem& p, const Outputs& out) {
  Plan plan;
  const KernelChoice choice = choose_kernel(p);
  plan.kernel = choice.kernel;
  plan.reason = choice.reason;
  plan.block_q = block_queries(p, plan.kernel);
  plan.tail = plan.kernel == Kernel::decode ? 0 : n_tail_queries(p);
  const std::size_t rest = p.T_q - plan.tail;
  plan.n_blocks =
      rest / plan.block_q + (rest % plan.block_q != 0 ? 1 : 0) + (plan.tail != 0 ? 1 : 0);
  const bool nothing_to_write = p.d_v == 0 && out.row_max.data == nullptr &&
                                out.row_sum.data == nullptr && out.log_sum_exp.data == nullptr &&
                                out.weights.data == nullptr && out.average_weights.data == nullptr;
  plan.n_tasks = nothing_to_write ? 0 : p.n_batch * p.n_heads * plan.n_blocks;
  if (plan.kernel == Kernel::decode) {
    plan.decode = cut_decode(p);
    plan.n_tasks = nothing_to_write ? 0
                                    : p.n_batch * (p.n_heads / std::max<std::size_t>(p.group, 1)) *
                                          plan.decode.n_blocks * plan.decode.n_parts;
  }
  plan.longest_first = p.terms.diagonal != kernels::kNoDiagonal;
  plan.on_calling_thread = multiply_adds(p, plan.kernel, out) < kWorthThreads;
  return plan;
}

double n_visible_pairs(const Problem& p) {
  const double n_heads = static_cast<double>(p.n_batch) * static_cast<double>(p.n_heads);
  const auto T_q = static_cast<double>(p.T_q), T_k = static_cast<double>(p.T_k);
  if (p.terms.diagonal == kernels::kNoDiagonal) return n_heads * T_q * T_k;
  // Query t sees clamp(t + first, 0, maskable) keys before the ones that all see.
  const auto first = static_cast<double>(p.terms.diagonal) + 1;
  const double maskable = std::min(static_cast<double>(p.terms.n_maskable), T_k);
  const double growing = std::clamp(-first, 0.0, T_q);  // this query and later ones see some
  const double whole = std::clamp(maskable - first, growing, T_q);  // from here on all of them
  const double low = growing + first, high = whole - 1 + first;
  const double triangle = whole > growing ? (low + high) / 2 * (whole - growing) : 0;
  return n_heads * (triangle + (T_q - whole) * maskable + T_q * (T_k - maskable));
}

std::size_t scratch_bytes(const Problem& p, const Plan& plan, std::size_t n_threads) {
  if (plan.kernel == Kernel::decode) {
    const DecodeScratch scratch = decode_scratch(p, plan);
    return scratch.shared + n_threads * scratch.each_thread;
  }
  kernels::FlashForwardArgs args;
  args.dtype = p.dtype;
  args.T_k = p.T_k;
  args.d_head = p.d_head;
  args.d_v = p.d_v;
  args.T_q = p.T_q;
  args.q.stride_i = p.q.at.i;
  args.k.stride_i = p.k.at.i;
  args.v.stride_i = p.v.at.i;
  args.n_q = std::min(plan.block_q, p.T_q - plan.tail);
  std::size_t each_thread = block_kernel(plan.kernel).scratch(args);
  if (plan.tail != 0) each_thread = std::max(each_thread, tail_scratch(p, plan));
  return n_threads * each_thread;
}

Task block_at(const Problem& p, const Plan& plan, std::size_t n) {
  const std::size_t block = plan.longest_first ? plan.n_blocks - 1 - n : n;
  if (plan.tail != 0 && block + 1 == plan.n_blocks) return {0, 0, p.T_q - plan.tail, plan.tail};
  const std::size_t t0 = block * plan.block_q;
  return {0, 0, t0, std::min(plan.block_q, p.T_q - plan.tail - t0)};
}

bool is_tail(const Problem& p, const Plan& plan, const Task& task) {
  return plan.tail != 0 && task.t0 == p.T_q - plan.tail;
}

// Order, outermost first: batch, key and value head, block of queries, query head of the group.
Task task_at(const Problem& p, const Plan& plan, std::size_t index) {
  const std::size_t in_group = index % p.group;
  index /= p.group;
  Task task = block_at(p, plan, index % plan.n_blocks);
  index /= plan.n_blocks;
  const std::size_t n_groups = p.n_heads / p.group;
  task.b = index / n_groups;
  task.h = index % n_groups * p.group + in_group;
  return task;
}

}  // namespace headwise::attention
