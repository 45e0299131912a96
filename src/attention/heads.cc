#include "attention/heads.h"

#include <cmath>

namespace headwise::attention {
namespace {

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

template <typename T>
void write_rows(const Outputs& out, const RowStates& rows, const Shape& position,
                const HeadRows& at) {
  const T* m = static_cast<const T*>(matrix_of(rows.row_max, position, at.h).data);
  const T* l = static_cast<const T*>(matrix_of(rows.row_sum, position, at.h).data);
  const auto write = [&](const Output& output, const T* from, auto&& value) {
    if (output.data == nullptr) return;
    const kernels::Matrix to = matrix_of(output, position, at.h);
    if (to.data == from) return;  // the kernel wrote there
    for (std::size_t t = at.t0; t < at.t0 + at.n_q; ++t)
      static_cast<T*>(to.data)[static_cast<std::ptrdiff_t>(t) * to.stride_t] = value(t);
  };
  write(out.row_max, m, [&](std::size_t t) { return m[t]; });
  write(out.row_sum, l, [&](std::size_t t) { return l[t]; });
  write(out.log_sum_exp, nullptr, [&](std::size_t t) {
    return static_cast<T>(static_cast<double>(m[t]) + std::log(static_cast<double>(l[t])));
  });
}

}  // namespace

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

void write_row_outputs(const Problem& p, const Outputs& out, const RowStates& rows,
                       const Shape& position, const HeadRows& at) {
  if (!rows.wanted) return;
  if (p.row_dtype == DType::f64)
    write_rows<double>(out, rows, position, at);
  else
    write_rows<float>(out, rows, position, at);
}

kernels::WeightsHead weights_head(const Problem& p, const RowStates& rows, std::size_t b,
                                  std::size_t h) {
  const Shape position = batch_position(p.batch, b);
  kernels::WeightsHead head;
  head.q = matrix_of(p.q, position, h);
  head.k = matrix_of(p.k, position, h / p.group);
  head.row_max = matrix_of(rows.row_max, position, h).data;
  head.row_sum = matrix_of(rows.row_sum, position, h).data;
  head.terms = terms_of(p, position, h);
  head.dropout = dropout_of(p, b, h);
  return head;
}

}  // namespace headwise::attention
