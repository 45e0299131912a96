// The forward call: checks, plan, one task for each block of queries of each head.
#include "attention/forward.h"

#include <cmath>
#include <cstring>
#include <memory>

#include "attention/plan.h"
#include "attention/problem.h"
#include "headwise/attention.h"
#include "kernels/attention_weights.h"
#include "kernels/flash_forward.h"
#include "runtime/parallel_for.h"
#include "runtime/scratch.h"

namespace headwise {
namespace attention {
namespace {

kernels::ConstMatrix matrix_of(const Input& input, const Shape& position, std::size_t h) {
  return {element(input.data, input.dtype, offset_of(input.at, position, h)), input.at.t,
          input.at.i};
}

kernels::Matrix matrix_of(const Output& output, const Shape& position, std::size_t h) {
  return {element(output.data, output.dtype, offset_of(output.at, position, h)), output.at.t,
          output.at.i};
}

kernels::ScoreTerms terms_of(const Problem& p, const Shape& position, std::size_t h) {
  kernels::ScoreTerms terms = p.terms;
  for (std::size_t n = 0; n < kernels::kMaxMasks; ++n)
    terms.masks[n] = mask_matrix(p.masks[n], position, h);
  return terms;
}

kernels::Dropout dropout_of(const Problem& p, std::size_t b, std::size_t h) {
  kernels::Dropout dropout = p.dropout;
  dropout.head = b * p.n_heads + h;
  return dropout;
}

// Row max and row sum as kernels write them: contiguous over a head's queries.
struct RowStates {
  Output row_max, row_sum;
  bool wanted = false;
};

// A caller's tensor serves where it is contiguous in t; otherwise scratch [n_batch, n_heads, T_q].
Output place_rows(const Problem& p, const Output& wanted, runtime::ScratchFrame& frame) {
  if (wanted.data != nullptr && (wanted.at.t == 1 || p.T_q == 1)) return wanted;
  const std::size_t n = p.n_batch * p.n_heads * p.T_q;
  Output rows;
  rows.dtype = p.row_dtype;
  rows.data = frame.take<std::byte>(n * size_of(p.row_dtype));
  rows.at.h = static_cast<std::ptrdiff_t>(p.T_q);
  rows.at.t = 1;
  rows.at.batch = contiguous_strides(p.batch);
  for (std::ptrdiff_t& stride : rows.at.batch)
    stride *= static_cast<std::ptrdiff_t>(p.n_heads * p.T_q);
  return rows;
}

RowStates place_row_states(const Problem& p, const Outputs& out, runtime::ScratchFrame& frame) {
  RowStates rows;
  rows.wanted = out.row_max.data != nullptr || out.row_sum.data != nullptr ||
                out.log_sum_exp.data != nullptr || out.weights.data != nullptr ||
                out.average_weights.data != nullptr;
  if (!rows.wanted) return rows;
  rows.row_max = place_rows(p, out.row_max, frame);
  rows.row_sum = place_rows(p, out.row_sum, frame);
  return rows;
}

struct Forward {
  const Problem& p;
  const Plan& plan;
  const Outputs& out;
  const RowStates& rows;

  void run_task(std::size_t index) const;
  void average_task(std::size_t index) const;
  kernels::WeightsHead weights_head(std::size_t b, const Shape& position, std::size_t h) const;
  template <typename T>
  void write_row_outputs(const Task& task, const Shape& position) const;
};

void Forward::run_task(std::size_t index) const {
  const Task task = task_at(p, plan, index);
  const Shape position = batch_position(p.batch, task.b);
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
  kernels::flash_forward(args);

  if (rows.wanted) {
    if (p.row_dtype == DType::f64)
      write_row_outputs<double>(task, position);
    else
      write_row_outputs<float>(task, position);
  }
  if (out.weights.data == nullptr) return;
  const kernels::WeightsHead head = weights_head(task.b, position, task.h);
  kernels::AttentionWeightsArgs weights{p.dtype, &head,    1,       {},      p.T_q,
                                        p.T_k,   p.d_head, task.t0, task.n_q};
  weights.w = matrix_of(out.weights, position, task.h);
  kernels::attention_weights(weights);
}

// What the kernel left in scratch goes to the caller's strides.
template <typename T>
void Forward::write_row_outputs(const Task& task, const Shape& position) const {
  const T* m = static_cast<const T*>(matrix_of(rows.row_max, position, task.h).data);
  const T* l = static_cast<const T*>(matrix_of(rows.row_sum, position, task.h).data);
  const auto write = [&](const Output& output, const T* from, auto&& value) {
    if (output.data == nullptr) return;
    const kernels::Matrix to = matrix_of(output, position, task.h);
    if (to.data == from) return;  // the kernel wrote there
    for (std::size_t t = task.t0; t < task.t0 + task.n_q; ++t)
      static_cast<T*>(to.data)[static_cast<std::ptrdiff_t>(t) * to.stride_t] = value(t);
  };
  write(out.row_max, m, [&](std::size_t t) { return m[t]; });
  write(out.row_sum, l, [&](std::size_t t) { return l[t]; });
  write(out.log_sum_exp, nullptr, [&](std::size_t t) {
    return static_cast<T>(static_cast<double>(m[t]) + std::log(static_cast<double>(l[t])));
  });
}

kernels::WeightsHead Forward::weights_head(std::size_t b, const Shape& position,
                                           std::size_t h) const {
  kernels::WeightsHead head;
  head.q = matrix_of(p.q, position, h);
  head.k = matrix_of(p.k, position, h / p.group);
  head.row_max = matrix_of(rows.row_max, position, h).data;
  head.row_sum = matrix_of(rows.row_sum, position, h).data;
  head.terms = terms_of(p, position, h);
  head.dropout = dropout_of(p, b, h);
  return head;
}

// One block of queries of one batch index, all its heads: a mean without a matrix for each head.
void Forward::average_task(std::size_t index) const {
  Task task = block_at(p, plan, index % plan.n_blocks);
  task.b = index / plan.n_blocks;
  const Shape position = batch_position(p.batch, task.b);
  runtime::ScratchFrame frame;
  auto* heads = frame.take<kernels::WeightsHead>(p.n_heads);
  for (std::size_t h = 0; h < p.n_heads; ++h)
    std::construct_at(heads + h, weights_head(task.b, position, h));
  kernels::AttentionWeightsArgs args{p.dtype, heads,    p.n_heads, {},      p.T_q,
                                     p.T_k,   p.d_head, task.t0,   task.n_q};
  args.w = matrix_of(out.average_weights, position, 0);
  kernels::attention_weights(args);
}

template <typename F>
void for_each_task(std::size_t n, bool on_calling_thread, F&& task) {
  if (on_calling_thread)
    for (std::size_t i = 0; i < n; ++i) task(i);
  else
    runtime::parallel_for(n, task);
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
  const Forward call{p, plan, out, rows};
  for_each_task(plan.n_tasks, plan.on_calling_thread,
                [&](std::size_t index) { call.run_task(index); });
  if (out.average_weights.data == nullptr) return;
  if (p.n_heads == 0)
    clear_average(p, out.average_weights);
  else
    for_each_task(p.n_batch * plan.n_blocks, plan.on_calling_thread,
                  [&](std::size_t index) { call.average_task(index); });
}

}  // namespace

void forward(const Call& call, DType bias_dtype) {
  const Problem problem = make_problem(call.q, call.k, call.v, call.options, bias_dtype);
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
