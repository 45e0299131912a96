// The forward call: checks, plan, one task for each block of queries of each head.
#include "attention/forward.h"

#include <cstring>
#include <memory>
#include <span>

#include "attention/decode.h"
#include "attention/heads.h"
#include "attention/plan.h"
#include "attention/problem.h"
#include "attention/tasks.h"
#include "headwise/attention.h"
#include "kernels/attention_weights.h"
#include "kernels/decode/decode_weights.h"
#include "kernels/flash_forward.h"
#include "runtime/scratch.h"

namespace headwise {
namespace attention {
namespace {

struct Forward {
  const Problem& p;
  const Plan& plan;
  const Outputs& out;
  const RowStates& rows;

  void run_task(std::size_t index) const;
  void run_block(const Task& task, const Shape& position) const;
  void write_weights(const Task& task, std::span<const kernels::WeightsHead> heads,
                     const kernels::Matrix& w) const;
  void average_task(std::size_t index) const;
};

void Forward::run_task(std::size_t index) const {
  const Task task = task_at(p, plan, index);
  const Shape position = batch_position(p.batch, task.b);
  if (is_tail(p, plan, task))
    decode_tail(p, out, rows, task);
  else
    run_block(task, position);
  write_row_outputs(p, out, rows, position, {task.h, task.t0, task.n_q});
  if (out.weights.data == nullptr) return;
  const kernels::WeightsHead head = weights_head(p, rows, task.b, task.h);
  write_weights(task, {&head, 1}, matrix_of(out.weights, position, task.h));
}

// The mean of the heads' weights, or one head's.
void Forward::write_weights(const Task& task, std::span<const kernels::WeightsHead> heads,
                            const kernels::Matrix& w) const {
  kernels::AttentionWeightsArgs args{p.dtype, heads.data(), heads.size(), w,       p.T_q,
                                     p.T_k,   p.d_head,     task.t0,      task.n_q};
  if (is_tail(p, plan, task))  // by the kernel whose row max it is
    kernels::decode_weights(args, 0, p.T_k);
  else
    kernels::attention_weights(args);
}

void Forward::run_block(const Task& task, const Shape& position) const {
  const std::size_t h_kv = task.h / p.group;
  kernels::FlashForwardArgs args;
  args.dtype = p.dtype;
  args.q = matrix_of(p.q, position, task.h);
  args.k = matrix_of(p.k, position, h_kv);
  args.v = matrix_of(p.v, position, h_kv);
  args.o = matrix_of(out.o, position, task.h);
  if (rows.wanted) {
    args.row_max = matrix_of(rows.row_max, position, task.h).data;
    args.row_sum = matrix_of(rows.row_sum, position, task.h).data;
  }
  args.T_q = p.T_q;
  args.T_k = p.T_k;
  args.d_head = p.d_head;
  args.d_v = p.d_v;
  args.t0 = task.t0;
  args.n_q = task.n_q;
  args.terms = terms_of(p, position, task.h);
  args.dropout = dropout_of(p, task.b, task.h);
  block_kernel(plan.kernel).run(args);
}

// One block of queries of one batch index, all its heads: a mean without a matrix for each head.
void Forward::average_task(std::size_t index) const {
  Task task = block_at(p, plan, index % plan.n_blocks);
  task.b = index / plan.n_blocks;
  const Shape position = batch_position(p.batch, task.b);
  runtime::ScratchFrame frame;
  auto* heads = frame.take<kernels::WeightsHead>(p.n_heads);
  for (std::size_t h = 0; h < p.n_heads; ++h)
    std::construct_at(heads + h, weights_head(p, rows, task.b, h));
  write_weights(task, {heads, p.n_heads}, matrix_of(out.average_weights, position, 0));
}

// A mean over no heads is 0.
void clear_average(const Problem& p, const Output& average) {
  for (std::size_t b = 0; b < p.n_batch; ++b) {
    const kernels::Matrix w = matrix_of(average, batch_position(p.batch, b), 0);
    for (std::size_t t = 0; t < p.T_q; ++t)
      for (std::size_t j = 0; j < p.T_k; ++j)
        std::memset(element(w.data, average.dtype,
                            static_cast<std::ptrdiff_t>(t) * w.stride_t +
                                static_cast<std::ptrdiff_t>(j) * w.stride_i),
                    0, size_of(average.dtype));
  }
}

void run(const Problem& p, const Outputs& out) {
  const Plan plan = make_plan(p, out);
  runtime::ScratchFrame frame;
  const RowStates rows = place_row_states(p, out, frame);
  if (out.average_weights.data != nullptr && p.n_heads == 0) clear_average(p, out.average_weights);
  if (plan.kernel == Kernel::decode) {
    decode(p, plan, out, rows);
    return;
  }
  const Forward call{p, plan, out, rows};
  for_each_task(plan.n_tasks, plan.on_calling_thread,
                [&](std::size_t index) { call.run_task(index); });
  if (out.average_weights.data != nullptr && p.n_heads != 0)
    for_each_task(p.n_batch * plan.n_blocks, plan.on_calling_thread,
                  [&](std::size_t index) { call.average_task(index); });
}

}  // namespace

void forward(const Call& call, DType bias_dtype) {
  const Problem problem =
      make_problem(call.q, call.k, call.v, call.options, bias_dtype, call.own_memory);
  run(problem, check_outputs(problem, call));
}

}  // namespace attention

Shape attention_output_shape(const ConstTensorView& q, const ConstTensorView& k,
                             const ConstTensorView& v, const AttentionOptions& options) {
  return attention::make_problem(q, k, v, options).o_shape;
}

void scaled_dot_product_attention(const ConstTensorView& q, const ConstTensorView& k,
                                  const ConstTensorView& v, const AttentionOptions& options,
                                  const TensorView& o, const AttentionExtras& extras) {
  attention::forward({q, k, v, options, o, extras}, q.dtype);
}

Tensor scaled_dot_product_attention(const ConstTensorView& q, const ConstTensorView& k,
                                    const ConstTensorView& v, const AttentionOptions& options) {
  Tensor o(q.dtype, attention_output_shape(q, k, v, options));
  scaled_dot_product_attention(q, k, v, options, o.view());
  return o;
}

}  // namespace headwise
