#include "module/gradients.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/floating.h"
#include "kernels/matmul.h"
#include "module/state.h"
#include "runtime/parallel_for.h"
#include "runtime/scratch.h"

namespace headwise {
namespace {

MultiheadAttentionOptions in_arithmetic(MultiheadAttentionOptions options) {
  if (options.dtype != DType::f64) options.dtype = DType::f32;
  options.weight_dtype.reset();
  return options;
}

TensorView mutable_view(const ConstTensorView& view) {
  return {const_cast<void*>(view.data), view.dtype, view.shape, view.strides};
}

void fill_zero(const ConstTensorView& view) {
  std::memset(const_cast<void*>(view.data), 0, element_count(view.shape) * size_of(view.dtype));
}

}  // namespace

ParameterGradients::State::State(const MultiheadAttentionOptions& options,
                                 const module::Sizes& sizes)
    : values(in_arithmetic(options), sizes), is_frozen(values.size(), 0) {
  for (std::size_t i = 0; i < values.size(); ++i) fill_zero(values.view(i));
}

std::size_t ParameterGradients::State::index_of(const std::string& name) const {
  std::string all;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values.name(i) == name) return i;
    all.append(i == 0 ? "" : ", ").append(values.name(i));
  }
  core::throw_argument("name", "\"" + name + "\"", "one of " + all);
}

TensorView ParameterGradients::State::wanted(const std::string& name) const {
  if (!values.has(name) || is_frozen[index_of(name)] != 0) return {};
  return mutable_view(values.view(name));
}

ParameterGradients::State::Projection ParameterGradients::State::projection(std::size_t i) const {
  const module::Parameters::Projection all =
      i < 3 ? values.input_projection(i) : values.output_projection();
  Projection p;
  if (wanted(values.weight_name(i)).data != nullptr) p.weight = mutable_view(all.weight);
  if (wanted(values.bias_name(i)).data != nullptr) p.bias = mutable_view(all.bias);
  return p;
}

void ParameterGradients::State::check_same(const module::Parameters& parameters) const {
  const auto text = [](const module::Parameters& p) {
    std::string all;
    for (std::size_t i = 0; i < p.size(); ++i)
      all.append(i == 0 ? "" : ", ")
          .append(p.name(i))
          .append(" ")
          .append(to_string(p.view(i).shape));
    return all;
  };
  bool same = values.size() == parameters.size();
  for (std::size_t i = 0; same && i < values.size(); ++i)
    same = values.name(i) == parameters.name(i) && values.view(i).shape == parameters.view(i).shape;
  if (!same) core::throw_argument("parameters", text(values), "gradients of " + text(parameters));
}

ParameterGradients::ParameterGradients(const MultiheadAttention& module)
    : state_(module.new_gradients()) {}
ParameterGradients::~ParameterGradients() = default;
ParameterGradients::ParameterGradients(ParameterGradients&&) noexcept = default;
ParameterGradients& ParameterGradients::operator=(ParameterGradients&&) noexcept = default;

std::vector<NamedTensorView> ParameterGradients::views() {
  std::vector<NamedTensorView> all;
  for (std::size_t i = 0; i < state_->values.size(); ++i)
    if (state_->is_frozen[i] == 0)
      all.push_back({state_->values.name(i), mutable_view(state_->values.view(i))});
  return all;
}

TensorView ParameterGradients::view(const std::string& name) {
  return mutable_view(state_->values.view(state_->index_of(name)));
}

void ParameterGradients::zero() {
  for (std::size_t i = 0; i < state_->values.size(); ++i) fill_zero(state_->values.view(i));
}

void ParameterGradients::freeze(const std::string& name, bool frozen) {
  state_->is_frozen[state_->index_of(name)] = frozen ? 1 : 0;
}

bool ParameterGradients::frozen(const std::string& name) const {
  return state_->is_frozen[state_->index_of(name)] != 0;
}

namespace module {
namespace {

// Columns of a matrix whose sums one task makes, a cache line or more of each row.
constexpr std::size_t kColumns = 64;

template <typename Sum, typename T>
void add_column_sums(const ConstTensorView& x, Sum* to, std::size_t n0, std::size_t n) {
  Sum sums[kColumns] = {};
  const T* row = static_cast<const T*>(x.data) + static_cast<std::ptrdiff_t>(n0) * x.strides[1];
  for (std::size_t r = 0; r < x.shape[0]; ++r, row += x.strides[0]) {
    if (x.strides[1] == 1)
      for (std::size_t i = 0; i < n; ++i) sums[i] += core::as<Sum>(row[i]);
    else
      for (std::size_t i = 0; i < n; ++i)
        sums[i] += core::as<Sum>(row[static_cast<std::ptrdiff_t>(i) * x.strides[1]]);
  }
  for (std::size_t i = 0; i < n; ++i) to[n0 + i] += sums[i];
}

template <typename Sum>
void add_rows(const ConstTensorView& x, const TensorView& to, std::size_t first, std::size_t last) {
  const std::size_t n = to.shape.from_back(0);
  for (std::size_t r = first; r < last; ++r) {
    const auto row = static_cast<std::ptrdiff_t>(r);
    const Sum* from = static_cast<const Sum*>(x.data) + row * x.strides[0];
    Sum* sum = static_cast<Sum*>(to.data) + row * to.strides[0];
    for (std::size_t i = 0; i < n; ++i) sum[i] += from[i];
  }
}

ConstTensorView transposed(const ConstTensorView& x) {
  return {x.data, x.dtype, {x.shape[1], x.shape[0]}, {x.strides[1], x.strides[0]}};
}

}  // namespace

void add_column_sums(const ConstTensorView& x, const TensorView& to) {
  const std::size_t N = x.shape[1];
  core::with_floating(x.dtype, [&](auto element) {
    using T = decltype(element);
    runtime::parallel_for((N + kColumns - 1) / kColumns, [&](std::size_t i) {
      const std::size_t n0 = i * kColumns, n = std::min(kColumns, N - n0);
      if (to.dtype == DType::f64)
        add_column_sums<double, T>(x, static_cast<double*>(to.data), n0, n);
      else
        add_column_sums<float, T>(x, static_cast<float*>(to.data), n0, n);
    });
  });
}

void add_to(const ConstTensorView& x, const TensorView& to) {
  constexpr std::size_t kRows = 16;
  const std::size_t n_rows = to.shape[0];
  runtime::parallel_for((n_rows + kRows - 1) / kRows, [&](std::size_t i) {
    const std::size_t last = std::min(n_rows, (i + 1) * kRows);
    if (to.dtype == DType::f64)
      add_rows<double>(x, to, i * kRows, last);
    else
      add_rows<float>(x, to, i * kRows, last);
  });
}

void add_weight_gradients(std::span<const WeightGradient> gradients) {
  runtime::ScratchFrame scratch;
  std::vector<kernels::PackedWeights> tables;
  std::vector<kernels::MatmulArgs> products;
  std::vector<std::pair<ConstTensorView, TensorView>> sums;
  tables.reserve(gradients.size());
  for (const WeightGradient& g : gradients) {
    if (g.dy.shape[0] == 0) continue;
    if (g.to.bias.data != nullptr) add_column_sums(g.dy, g.to.bias);
    if (g.to.weight.data == nullptr) continue;
    const kernels::PackedWeights& w = tables.emplace_back(transposed(g.x), ConstTensorView{});
    const std::size_t ld = w.n_panels() * w.panel_columns();
    const DType dtype = g.to.weight.dtype;
    const Shape shape = g.to.weight.shape;
    kernels::MatmulArgs args;
    args.w = &w;
    args.a_dtype = g.dy.dtype;
    args.a = g.dy.data;
    args.a_rows = {1, g.dy.strides[1], 0};
    args.a_stride_k = g.dy.strides[0];
    args.c_dtype = dtype;
    args.c = scratch.take<std::byte>(shape[0] * ld * size_of(dtype));
    args.c_rows = {1, static_cast<std::ptrdiff_t>(ld), 0};
    args.c_columns = ld;
    args.M = shape[0];
    products.push_back(args);
    sums.push_back({{args.c, dtype, shape, {static_cast<std::ptrdiff_t>(ld), 1}}, g.to.weight});
  }
  kernels::matmul(products);
  for (const auto& [product, gradient] : sums) add_to(product, gradient);
}

}  // namespace module
}  // namespace headwise
