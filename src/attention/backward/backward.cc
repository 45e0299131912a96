// The backward call: checks, row arrays, then tasks for whole heads or for ranges of their queries
// and keys, then the gradients of biases. Which tasks depends on the number of threads, no bit
// does: a head is summed in one order (kernels/backward/flash_backward.cc).
#include "attention/backward/backward.h"

#include <cstring>
#include <memory>

#include "attention/backward/broadcast_sum.h"
#include "attention/heads.h"
#include "attention/plan.h"
#include "attention/tasks.h"
#include "headwise/runtime.h"
#include "kernels/backward/bias_gradient.h"
#include "kernels/backward/flash_backward.h"
#include "kernels/flash_forward.h"
#include "runtime/scratch.h"

namespace headwise {
namespace attention {
namespace {

using kernels::kBackwardBlock;
using kernels::kBackwardTile;

std::size_t blocks_of(std::size_t n, std::size_t size) { return (n + size - 1) / size; }

// [n_batch, n_heads, T_q] each, of row_dtype.
struct RowArrays {
  std::byte *row_max, *inverse, *delta;
};

struct Backward {
  const Problem& p;
  const BackwardInputs& in;
  const RowArrays rows;
  const std::size_t first_recomputed;  // of the queries: row max and sum are formed anew
  const bool on_calling_thread;
  PlacedGradient dq, dk, dv;

  void prepare_rows(std::size_t index) const;
  kernels::BackwardHead head(std::size_t b, std::size_t h) const;
  void run() const;
  bool whole_heads() const;
  void run_head(std::size_t index, bool want_dq, std::size_t j0, std::size_t n_k) const;
  void run_queries(std::size_t index) const;
  void bias_gradient(const TensorView& wanted, const Output& output) const;

  std::size_t row_offset(std::size_t b, std::size_t h) const {
    return (b * p.n_heads + h) * p.T_q * size_of(p.row_dtype);
  }
  // Query heads of one key and value head; 0 where there are no query heads.
  std::size_t group() const { return p.n_kv_heads == 0 ? 0 : p.n_heads / p.n_kv_heads; }
};

// The row max that a few queries got from the decode kernel has other bits than the scores here,
// which differ by many units in the last place where they are huge: it is formed again.
std::size_t first_recomputed_query(const Problem& p) {
  if (choose_kernel(p).kernel == Kernel::decode) return 0;
  return p.T_q - n_tail_queries(p);
}

kernels::FlashBackwardArgs sizes_of(const Problem& p) {
  kernels::FlashBackwardArgs args;
  args.dtype = p.dtype;
  args.T_q = args.n_q = p.T_q;
  args.T_k = args.n_k = p.T_k;
  args.d_head = p.d_head;
  args.d_v = p.d_v;
  return args;
}

void Backward::prepare_rows(std::size_t index) const {
  const std::size_t b = index / p.n_heads, h = index % p.n_heads;
  const Shape position = batch_position(p.batch, b);
  const std::size_t at = row_offset(b, h), size = size_of(p.row_dtype);
  const auto copy = [&](const Input& from, std::byte* to) {
    const kernels::ConstMatrix row = matrix_of(from, position, h);
    for (std::size_t t = 0; t < first_recomputed; ++t)
      std::memcpy(to + t * size,
                  element(row.data, from.dtype, static_cast<std::ptrdiff_t>(t) * row.stride_t),
                  size);
  };
  copy(in.row_max, rows.row_max + at);
  copy(in.row_sum, rows.inverse + at);
  if (first_recomputed < p.T_q) {
    runtime::ScratchFrame frame;
    kernels::FlashForwardArgs args;
    args.dtype = p.dtype;
    args.q = matrix_of(p.q, position, h);
    args.k = matrix_of(p.k, position, h / p.group);
    args.v = matrix_of(p.v, position, h / p.group);
    args.o = {frame.take<std::byte>(p.d_v * size_of(p.dtype)), 0, 1};  // one row for all: not read
    args.row_max = rows.row_max + at;
    args.row_sum = rows.inverse + at;
    args.T_q = p.T_q;
    args.T_k = p.T_k;
    args.d_head = p.d_head;
    args.d_v = p.d_v;
    args.t0 = first_recomputed;
    args.n_q = p.T_q - first_recomputed;
    args.terms = terms_of(p, position, h);
    kernels::flash_forward(args);
  }
  kernels::backward_rows({p.dtype, matrix_of(in.o, position, h), matrix_of(in.d_o, position, h),
                          rows.row_max + at, rows.inverse + at, rows.delta + at, p.d_v, 0, p.T_q});
  if (in.d_weights.data == nullptr && in.d_average_weights.data == nullptr) return;
  std::memset(rows.delta + at, 0, p.T_q * size);
  const kernels::BackwardHead one = head(b, h);
  kernels::FlashBackwardArgs args = sizes_of(p);
  args.heads = &one;
  kernels::backward_delta(args, rows.delta + at);
}

kernels::BackwardHead Backward::head(std::size_t b, std::size_t h) const {
  const Shape position = batch_position(p.batch, b);
  const std::size_t at = row_offset(b, h);
  kernels::BackwardHead one;
  one.q = matrix_of(p.q, position, h);
  one.k = matrix_of(p.k, position, h / p.group);
  one.v = matrix_of(p.v, position, h / p.group);
  one.d_o = matrix_of(in.d_o, position, h);
  one.row_max = rows.row_max + at;
  one.inverse = rows.inverse + at;
  one.delta = rows.delta + at;
  one.terms = terms_of(p, position, h);
  one.dropout = dropout_of(p, b, h);
  if (in.d_weights.data != nullptr) one.d_weights[0] = matrix_of(in.d_weights, position, h);
  if (in.d_average_weights.data != nullptr) {
    one.d_weights[1] = matrix_of(in.d_average_weights, position, 0);
    one.d_weights_factor[1] = 1.0 / static_cast<double>(p.n_heads);
  }
  return one;
}

// All query heads of one key and value head against the keys [j0, j0 + n_k).
void Backward::run_head(std::size_t index, bool want_dq, std::size_t j0, std::size_t n_k) const {
  const std::size_t b = index / p.n_kv_heads, h_kv = index % p.n_kv_heads;
  const Shape position = batch_position(p.batch, b);
  runtime::ScratchFrame frame;
  auto* heads = frame.take<kernels::BackwardHead>(group());
  auto* dq_of = frame.take<kernels::Matrix>(group());
  kernels::FlashBackwardArgs args = sizes_of(p);
  for (std::size_t n = 0; n < group(); ++n) {
    const std::size_t h = h_kv * group() + n;
    std::construct_at(heads + n, head(b, h));
    std::construct_at(dq_of + n);
    if (want_dq) dq_of[n] = matrix_of(dq.output, position, h);
  }
  args.heads = heads;
  args.n_heads = group();
  if (want_dq) args.dq = dq_of;
  if (dk.output.data != nullptr) args.dk = matrix_of(dk.output, position, h_kv);
  if (dv.output.data != nullptr) args.dv = matrix_of(dv.output, position, h_kv);
  args.dq_dtype = dq.output.dtype;
  args.dk_dtype = dk.output.dtype;
  args.dv_dtype = dv.output.dtype;
  args.j0 = j0;
  args.n_k = n_k;
  kernels::flash_backward(args);
}

// A block of queries of one head against all keys: dq alone.
void Backward::run_queries(std::size_t index) const {
  const std::size_t n_blocks = blocks_of(p.T_q, kBackwardBlock);
  const std::size_t b = index / n_blocks / p.n_heads, h = index / n_blocks % p.n_heads;
  const std::size_t t0 =
      (n_blocks - 1 - index % n_blocks) * kBackwardBlock;  // causal: longest first
  const kernels::BackwardHead one = head(b, h);
  const kernels::Matrix to = matrix_of(dq.output, batch_position(p.batch, b), h);
  kernels::FlashBackwardArgs args = sizes_of(p);
  args.heads = &one;
  args.n_heads = 1;
  args.dq = &to;
  args.dq_dtype = dq.output.dtype;
  args.t0 = t0;
  args.n_q = std::min(kBackwardBlock, p.T_q - t0);
  kernels::flash_backward(args);
}

// One pass over a head makes five products, two passes that threads can share seven.
bool Backward::whole_heads() const {
  if (on_calling_thread) return true;
  const std::size_t n = p.n_batch * p.n_kv_heads;
  const auto n_threads = static_cast<std::size_t>(get_num_threads());
  return 5 * blocks_of(n, n_threads) * n_threads <= 7 * n;
}

void Backward::run() const {
  const std::size_t n_pairs = p.n_batch * p.n_kv_heads;
  const bool want_dq = dq.output.data != nullptr;
  const bool want_keys = dk.output.data != nullptr || dv.output.data != nullptr;
  if (want_dq && want_keys && whole_heads()) {
    for_each_task(n_pairs, on_calling_thread,
                  [&](std::size_t index) { run_head(index, true, 0, p.T_k); });
    return;
  }
  const std::size_t n_blocks = blocks_of(p.T_k, kBackwardBlock);
  if (want_keys)
    for_each_task(n_pairs * n_blocks, on_calling_thread, [&](std::size_t index) {
      const std::size_t j0 = index % n_blocks * kBackwardBlock;
      run_head(index / n_blocks, false, j0, std::min(kBackwardBlock, p.T_k - j0));
    });
  if (want_dq)
    for_each_task(p.n_batch * p.n_heads * blocks_of(p.T_q, kBackwardBlock), on_calling_thread,
                  [&](std::size_t index) { run_queries(index); });
}

// A task for each tile of the bias: all heads that share it, one after the other.
void Backward::bias_gradient(const TensorView& wanted, const Output& output) const {
  if (output.data == nullptr) return;
  const Places places = places_of(wanted.shape, wanted.strides);
  const bool one_row = wanted.rank() < 2 || wanted.shape.from_back(1) == 1;
  const bool one_column = wanted.rank() < 1 || wanted.shape.from_back(0) == 1;
  const std::size_t n_maskable = p.terms.n_maskable;
  const std::size_t n_rows = one_row ? 1 : blocks_of(p.T_q, kBackwardTile);
  const std::size_t n_columns = one_column ? 1 : blocks_of(n_maskable, kBackwardTile);
  for_each_task(places.n * n_rows * n_columns, on_calling_thread, [&](std::size_t index) {
    const std::size_t tile = index % (n_rows * n_columns);
    const std::ptrdiff_t offset = place_offset(places, index / (n_rows * n_columns));
    runtime::ScratchFrame frame;
    auto* heads = frame.take<kernels::BackwardHead>(p.n_batch * p.n_heads);
    kernels::BiasGradientArgs args;
    args.dtype = p.dtype;
    args.heads = heads;
    for (std::size_t b = 0; b < p.n_batch; ++b)
      for (std::size_t h = 0; h < p.n_heads; ++h)
        if (offset_of(output.at, batch_position(p.batch, b), h) == offset)
          std::construct_at(heads + args.n_heads++, head(b, h));
    args.d_bias = {element(output.data, output.dtype, offset), output.at.t, output.at.i};
    args.bias_dtype = output.dtype;
    args.one_row = one_row;
    args.one_column = one_column;
    args.d_head = p.d_head;
    args.d_v = p.d_v;
    args.t0 = one_row ? 0 : tile / n_columns * kBackwardTile;
    args.n_q = one_row ? p.T_q : std::min(kBackwardTile, p.T_q - args.t0);
    args.j0 = one_column ? 0 : tile % n_columns * kBackwardTile;
    args.n_k = one_column ? n_maskable : std::min(kBackwardTile, n_maskable - args.j0);
    kernels::bias_gradient(args);
  });
}

}  // namespace

void backward(const BackwardCall& call, DType bias_dtype) {
  const Problem p = make_problem(call.q, call.k, call.v, call.options, bias_dtype);
  const BackwardInputs in = check_state(p, call.state);
  const Gradients out = check_gradients(p, call);
  runtime::ScratchFrame frame;
  const std::size_t row_bytes = p.n_batch * p.n_heads * p.T_q * size_of(p.row_dtype);
  const RowArrays rows{frame.take<std::byte>(row_bytes), frame.take<std::byte>(row_bytes),
                       frame.take<std::byte>(row_bytes)};
  const bool small =
      n_visible_pairs(p) * static_cast<double>(3 * p.d_head + 2 * p.d_v + 32) < kWorthThreads;
  const AttentionGradients& wanted = call.gradients;
  const Backward work{p,
                      in,
                      rows,
                      first_recomputed_query(p),
                      small,
                      place_gradient(p, wanted.dq, out.dq, p.n_heads, frame),
                      place_gradient(p, wanted.dk, out.dk, p.n_kv_heads, frame),
                      place_gradient(p, wanted.dv, out.dv, p.n_kv_heads, frame)};
  if (p.T_q != 0)
    for_each_task(p.n_batch * p.n_heads, small,
                  [&](std::size_t index) { work.prepare_rows(index); });
  work.run();
  for (const PlacedGradient* placed : {&work.dq, &work.dk, &work.dv})
    sum_broadcast(p, *placed, small);
  work.bias_gradient(wanted.d_mask, out.d_masks[0]);
  work.bias_gradient(wanted.d_second_mask, out.d_masks[1]);
}

}  // namespace attention

void scaled_dot_product_attention_backward(const ConstTensorView& q, const ConstTensorView& k,
                                           const ConstTensorView& v,
                                           const AttentionOptions& options,
                                           const AttentionState& state,
                                           const AttentionGradients& gradients) {
  attention::backward({q, k, v, options, state, gradients}, q.dtype);
}

}  // namespace headwise
