#include "module/projection.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "core/convert.h"
#include "kernels/bf16/amx_forward.h"

namespace headwise::module {
namespace {

// `before` was packed from `source`: a parameter that is set is a new tensor.
kernels::PackedWeights packed(const Parameters::Projection& p, const kernels::PackedWeights* before,
                              const void* source) {
  if (before != nullptr && source == p.weight.data) return {*before, p.bias};
  return {p.weight, p.bias};
}

Tensor flat(const ConstTensorView& bias, DType dtype) {
  if (bias.data == nullptr) return {};
  return core::converted(ConstTensorView(bias.data, bias.dtype, {bias.shape.from_back(0)}), dtype);
}

// Whole panels. Rows whose distance is a multiple of 1 KiB meet in few cache sets: one line more
// avoids it.
std::size_t padded_row(std::size_t width, DType dtype) {
  const std::size_t columns = kernels::PackedWeights::kPanelBytes / size_of(dtype);
  const std::size_t ld = (width + columns - 1) / columns * columns;
  return ld * size_of(dtype) % 1024 == 0 ? ld + Buffer::kAlignment / size_of(dtype) : ld;
}

kernels::RowLayout layout_of(std::size_t inner, std::ptrdiff_t stride_outer,
                             std::ptrdiff_t stride_inner) {
  return {std::max<std::size_t>(1, inner), stride_outer, stride_inner};
}

void append_steps(const HeadsBuffer& buffer, const Tensor& bias, const Call& call) {
  const std::size_t row_bytes = buffer.width * size_of(buffer.dtype);
  const bool has_bias = bias.size() > 0;
  for (std::size_t b = 0; b < call.B; ++b)
    for (std::size_t i = 0; i < call.n_appended; ++i) {
      std::byte* row = buffer.step(call.T_k + i, b);
      if (has_bias && i == 0)
        core::convert(bias.view(), TensorView(row, buffer.dtype, {buffer.width}));
      else
        std::memset(row, 0, row_bytes);
    }
}

}  // namespace

kernels::MatmulArgs product_of_rows(const kernels::PackedWeights& w, const Rows& rows,
                                    const HeadsBuffer& out) {
  kernels::MatmulArgs args;
  args.w = &w;
  args.a_dtype = rows.view.dtype;
  args.a = rows.view.data;
  args.a_rows = layout_of(rows.view.shape[1], rows.view.strides[0], rows.view.strides[1]);
  args.a_stride_k = rows.view.strides[2];
  args.c_dtype = out.dtype;
  args.c = out.data;
  args.c_rows = out.row_layout();
  args.c_rows.n_inner = args.a_rows.n_inner;  // the appended steps are not projected
  args.c_columns = out.ld;
  args.M = rows.count();
  return args;
}

kernels::MatmulArgs product_of_heads(const kernels::PackedWeights& w, const HeadsBuffer& heads,
                                     const TensorView& out) {
  kernels::MatmulArgs args;
  args.w = &w;
  args.a_dtype = heads.dtype;
  args.a = heads.data;
  args.a_rows = heads.row_layout();
  args.c_dtype = out.dtype;
  args.c = out.data;
  const Strides& strides = out.strides;
  args.c_rows =
      layout_of(out.shape.from_back(1), out.rank() == 3 ? strides[0] : 0, strides.from_back(1));
  args.c_stride_n = strides.from_back(0);
  args.a_rows.n_inner = args.c_rows.n_inner;  // not those that were appended
  args.M = element_count(out.shape) / std::max<std::size_t>(out.shape.from_back(0), 1);
  return args;
}

Projections::Projections(const Parameters& parameters, const Projections* before) {
  kernels::PackedWeights Projections::*const tables[] = {&Projections::q, &Projections::k,
                                                         &Projections::v, &Projections::out};
  for (std::size_t i = 0; i < 4; ++i) {
    const Parameters::Projection p =
        i < 3 ? parameters.input_projection(i) : parameters.output_projection();
    this->*tables[i] = packed(p, before == nullptr ? nullptr : &(before->*tables[i]),
                              before == nullptr ? nullptr : before->sources_[i]);
    sources_[i] = p.weight.data;
  }
  bias_k = flat(parameters.view("bias_k"), dtype());
  bias_v = flat(parameters.view("bias_v"), dtype());
}

DType Projections::heads_dtype(DType module) const {
  const bool narrow = module == DType::bf16 && q.stored() == DType::bf16 &&
                      out.stored() == DType::bf16 && kernels::bf16_amx_available();
  return narrow ? DType::bf16 : dtype();
}

HeadsBuffer::HeadsBuffer(const Rows& rows, std::size_t row_width, std::size_t appended, DType t)
    : dtype(t),
      width(row_width),
      ld(padded_row(row_width, t)),
      outer(rows.view.shape[0] + (rows.batch_outer ? 0 : appended)),
      inner(rows.view.shape[1] + (rows.batch_outer ? appended : 0)),
      batch_outer(rows.batch_outer) {}

TensorView HeadsBuffer::heads(std::size_t n_heads) const {
  const std::size_t d_head = width / n_heads;
  const auto by_inner = static_cast<std::ptrdiff_t>(ld);
  const auto by_outer = static_cast<std::ptrdiff_t>(inner * ld);
  const auto by_head = static_cast<std::ptrdiff_t>(d_head);
  if (batch_outer)
    return {data, dtype, {outer, n_heads, inner, d_head}, {by_outer, by_head, by_inner, 1}};
  return {data, dtype, {inner, n_heads, outer, d_head}, {by_inner, by_head, by_outer, 1}};
}

kernels::RowLayout HeadsBuffer::row_layout() const {
  return layout_of(inner, static_cast<std::ptrdiff_t>(inner * ld), static_cast<std::ptrdiff_t>(ld));
}

std::byte* HeadsBuffer::step(std::size_t t, std::size_t b) const {
  const std::size_t row = batch_outer ? b * inner + t : t * inner + b;
  return data + row * ld * size_of(dtype);
}

Heads::Heads(const Call& call, const Sizes& sizes, DType dtype)
    : q(call.query, sizes.q_width, 0, dtype),
      k(call.key, sizes.kv_width, call.n_appended, dtype),
      v(call.value, sizes.kv_width, call.n_appended, dtype),
      o(call.query, sizes.q_width, 0, dtype) {}

void project_inputs(const Projections& projections, const Call& call, const Heads& heads) {
  const kernels::MatmulArgs products[] = {product_of_rows(projections.q, call.query, heads.q),
                                          product_of_rows(projections.k, call.key, heads.k),
                                          product_of_rows(projections.v, call.value, heads.v)};
  kernels::matmul(products);
  append_steps(heads.k, projections.bias_k, call);
  append_steps(heads.v, projections.bias_v, call);
}

void project_output(const Projections& projections, const HeadsBuffer& o,
                    const TensorView& output) {
  const kernels::MatmulArgs args = product_of_heads(projections.out, o, output);
  kernels::matmul({&args, 1});
}

}  // namespace headwise::module
