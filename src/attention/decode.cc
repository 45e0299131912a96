// Forward by the decode kernel. A task takes a range of leaves of one (batch, KV head, block of
// rows); the last to finish of those that share rows merges their states, in the order of the
// leaves, so that nobody can tell who was last.
#include "attention/decode.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "attention/tasks.h"
#include "kernels/decode/decode_weights.h"
#include "kernels/decode/flash_decode.h"
#include "kernels/tiles.h"
#include "runtime/scratch.h"

namespace headwise::attention {
namespace {

using Pending = std::atomic<std::uint32_t>;

kernels::FlashDecodeArgs sizes_of(const Problem& p) {
  kernels::FlashDecodeArgs args;
  args.dtype = p.dtype;
  args.T_q = p.T_q;
  args.T_k = p.T_k;
  args.d_head = p.d_head;
  args.d_v = p.d_v;
  args.n_rows = std::min(kernels::kMostDecodeRows, p.group * p.T_q);
  return args;
}

// Memory that tasks share: states wait there for the last task of their rows.
struct Shared {
  std::byte* states;  // [rows blocks][n_parts], each as large as the largest
  Pending* pending;   // [rows blocks] tasks that have not finished
};

template <class Frame>
Shared take_shared(const Problem& p, const Plan& plan, Frame& frame) {
  Shared shared{nullptr, nullptr};
  const DecodeCut& cut = plan.decode;
  if (cut.n_parts < 2) return shared;
  const std::size_t size = kernels::decode_state_size(sizes_of(p));
  shared.states = frame.template take<std::byte>(plan.n_tasks * size);
  shared.pending = frame.template take<Pending>(plan.n_tasks / cut.n_parts);
  return shared;
}

// Memory of one task.
struct TaskMemory {
  kernels::DecodeHead* heads;  // [group]
  std::byte* state;            // of a task that shares its rows with no other
};

template <class Frame>
TaskMemory take_task_memory(const Problem& p, const Plan& plan, Frame& frame) {
  TaskMemory memory{frame.template take<kernels::DecodeHead>(p.group), nullptr};
  if (plan.decode.n_parts < 2)
    memory.state = frame.template take<std::byte>(kernels::decode_state_size(sizes_of(p)));
  return memory;
}

kernels::DecodeHead decode_head(const Problem& p, const Outputs& out, const RowStates& rows,
                                std::size_t b, std::size_t h) {
  const Shape position = batch_position(p.batch, b);
  kernels::DecodeHead head;
  head.q = matrix_of(p.q, position, h);
  head.o = matrix_of(out.o, position, h);
  if (rows.wanted) {
    head.row_max = matrix_of(rows.row_max, position, h).data;
    head.row_sum = matrix_of(rows.row_sum, position, h).data;
  }
  head.terms = terms_of(p, position, h);
  head.dropout = dropout_of(p, b, h);
  return head;
}

struct Decode {
  const Problem& p;
  const Plan& plan;
  const Outputs& out;
  const RowStates& rows;
  Shared shared{};

  void run_task(std::size_t index) const;
  void weights_task(std::size_t index) const;
  void average_task(std::size_t index) const;
  void write_rows(const kernels::FlashDecodeArgs& args, const Shape& position,
                  std::size_t first_head) const;
};

void Decode::run_task(std::size_t index) const {
  const DecodeCut& cut = plan.decode;
  const std::size_t part = index % cut.n_parts, rows_block = index / cut.n_parts;
  const std::size_t block = rows_block % cut.n_blocks, pair = rows_block / cut.n_blocks;
  const std::size_t n_groups = p.n_heads / p.group;
  const std::size_t b = pair / n_groups, h_kv = pair % n_groups;
  const Shape position = batch_position(p.batch, b);

  runtime::ScratchFrame frame;
  const TaskMemory memory = take_task_memory(p, plan, frame);
  for (std::size_t g = 0; g < p.group; ++g)
    std::construct_at(memory.heads + g, decode_head(p, out, rows, b, h_kv * p.group + g));
  kernels::FlashDecodeArgs args = sizes_of(p);
  args.heads = memory.heads;
  args.k = matrix_of(p.k, position, h_kv);
  args.v = matrix_of(p.v, position, h_kv);
  std::byte* states = memory.state;
  if (cut.n_parts > 1)
    states = shared.states + rows_block * cut.n_parts * kernels::decode_state_size(args);
  args.row0 = block * kernels::kMostDecodeRows;
  args.n_rows = std::min(kernels::kMostDecodeRows, p.group * p.T_q - args.row0);
  kernels::flash_decode(args, part * cut.n_leaves, cut.n_leaves,
                        states + part * kernels::decode_state_size(args));
  if (cut.n_parts > 1 && shared.pending[rows_block].fetch_sub(1, std::memory_order_acq_rel) != 1)
    return;
  kernels::finish_decode(args, states, cut.n_parts);
  write_rows(args, position, h_kv * p.group);
}

void Decode::write_rows(const kernels::FlashDecodeArgs& args, const Shape& position,
                        std::size_t first_head) const {
  for (std::size_t row = args.row0, end = args.row0 + args.n_rows; row < end;) {
    const std::size_t t0 = row % p.T_q, n = std::min(p.T_q - t0, end - row);
    write_row_outputs(p, out, rows, position, {first_head + row / p.T_q, t0, n});
    row += n;
  }
}

// Keys of the part that ends an index of a task, which is advanced past it.
struct KeyRange {
  std::size_t j0, n;
};
KeyRange take_part(const Problem& p, const DecodeCut& cut, std::size_t& index) {
  const std::size_t width = cut.n_leaves * kernels::kLeafK;
  const std::size_t j0 = index % cut.n_parts * width;
  index /= cut.n_parts;
  return {j0, std::min(width, p.T_k - j0)};
}

// The weights of one part of a head's keys for one block of its queries.
void Decode::weights_task(std::size_t index) const {
  const KeyRange keys = take_part(p, plan.decode, index);
  const Task block = block_at(p, plan, index % plan.n_blocks);
  index /= plan.n_blocks;
  const std::size_t b = index / p.n_heads, h = index % p.n_heads;
  const kernels::WeightsHead head = weights_head(p, rows, b, h);
  kernels::AttentionWeightsArgs args{p.dtype, &head,    1,        {},       p.T_q,
                                     p.T_k,   p.d_head, block.t0, block.n_q};
  args.w = matrix_of(out.weights, batch_position(p.batch, b), h);
  kernels::decode_weights(args, keys.j0, keys.n);
}

// The same, averaged over heads.
void Decode::average_task(std::size_t index) const {
  const KeyRange keys = take_part(p, plan.decode, index);
  const Task block = block_at(p, plan, index % plan.n_blocks);
  const std::size_t b = index / plan.n_blocks;
  runtime::ScratchFrame frame;
  auto* heads = frame.take<kernels::WeightsHead>(p.n_heads);
  for (std::size_t h = 0; h < p.n_heads; ++h)
    std::construct_at(heads + h, weights_head(p, rows, b, h));
  kernels::AttentionWeightsArgs args{p.dtype, heads,    p.n_heads, {},       p.T_q,
                                     p.T_k,   p.d_head, block.t0,  block.n_q};
  args.w = matrix_of(out.average_weights, batch_position(p.batch, b), 0);
  kernels::decode_weights(args, keys.j0, keys.n);
}

}  // namespace

void decode(const Problem& p, const Plan& plan, const Outputs& out, const RowStates& rows) {
  runtime::ScratchFrame frame;
  Decode call{p, plan, out, rows};
  const DecodeCut& cut = plan.decode;
  if (plan.n_tasks != 0) call.shared = take_shared(p, plan, frame);
  if (call.shared.pending != nullptr)
    for (std::size_t i = 0; i < plan.n_tasks / cut.n_parts; ++i)
      std::construct_at(call.shared.pending + i, static_cast<std::uint32_t>(cut.n_parts));
  for_each_task(plan.n_tasks, plan.on_calling_thread,
                [&](std::size_t index) { call.run_task(index); });
  const std::size_t n_blocks = p.n_batch * plan.n_blocks * cut.n_parts;
  if (out.weights.data != nullptr)
    for_each_task(n_blocks * p.n_heads, plan.on_calling_thread,
                  [&](std::size_t index) { call.weights_task(index); });
  if (out.average_weights.data != nullptr && p.n_heads != 0)
    for_each_task(n_blocks, plan.on_calling_thread,
                  [&](std::size_t index) { call.average_task(index); });
}

namespace {

kernels::FlashDecodeArgs tail_sizes(const Problem& p, std::size_t n_queries) {
  kernels::FlashDecodeArgs args = sizes_of(p);
  args.n_rows = n_queries;
  return args;
}

// All leaves in one part.
std::size_t all_leaves(const Problem& p) {
  return std::bit_ceil(std::max<std::size_t>((p.T_k + kernels::kLeafK - 1) / kernels::kLeafK, 1));
}

}  // namespace

void decode_tail(const Problem& p, const Outputs& out, const RowStates& rows, const Task& task) {
  const kernels::DecodeHead head = decode_head(p, out, rows, task.b, task.h);
  const Shape position = batch_position(p.batch, task.b);
  kernels::FlashDecodeArgs args = tail_sizes(p, task.n_q);
  args.heads = &head;
  args.k = matrix_of(p.k, position, task.h / p.group);
  args.v = matrix_of(p.v, position, task.h / p.group);
  args.row0 = task.t0;
  runtime::ScratchFrame frame;
  auto* state = frame.take<std::byte>(kernels::decode_state_size(args));
  kernels::flash_decode(args, 0, all_leaves(p), state);
  kernels::finish_decode(args, state, 1);
}

std::size_t tail_scratch(const Problem& p, const Plan& plan) {
  const kernels::FlashDecodeArgs args = tail_sizes(p, plan.tail);
  runtime::ScratchSize state;
  state.take<std::byte>(kernels::decode_state_size(args));
  return state.bytes() + kernels::flash_decode_scratch(args, all_leaves(p));
}

DecodeScratch decode_scratch(const Problem& p, const Plan& plan) {
  runtime::ScratchSize shared, task;
  take_shared(p, plan, shared);
  take_task_memory(p, plan, task);
  return {shared.bytes(),
          task.bytes() + kernels::flash_decode_scratch(sizes_of(p), plan.decode.n_leaves)};
}

}  // namespace headwise::attention
