#include "attention/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "attention/kernel_choice.h"
#include "attention/overlap.h"
#include "core/check.h"
#include "core/checked.h"
#include "kernels/isa.h"

namespace headwise::attention {
namespace {

std::string of_shape(const std::string& what, std::size_t n, const ConstTensorView& view) {
  return what + " = " + std::to_string(n) + " in shape " + to_string(view.shape);
}

bool computes_on(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16 || dtype == DType::f16;
}

void check_input(const char* name, const ConstTensorView& view, const char* dims) {
  if (view.rank() < 2)
    core::throw_argument(name,
                         std::to_string(view.rank()) + " dims in shape " + to_string(view.shape),
                         std::string("at least 2, ") + dims);
  core::check_view(name, view);
  // An empty view may have any sizes, but positions are computed in ptrdiff_t.
  constexpr auto kMax = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
  for (const std::size_t n : view.shape)
    if (n > kMax)
      core::throw_argument(name, "shape " + to_string(view.shape),
                           "no dim larger than " + std::to_string(kMax));
}

void check_inputs(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v) {
  if (!computes_on(q.dtype)) core::throw_dtype("q", q.dtype, "f32, f64, bf16 or f16");
  if (k.dtype != q.dtype)
    core::throw_dtype("k", k.dtype, "q's dtype " + std::string(name_of(q.dtype)));
  if (v.dtype != q.dtype)
    core::throw_dtype("v", v.dtype, "q's dtype " + std::string(name_of(q.dtype)));
  check_input("q", q, "[..., n_heads, T_q, d_head]");
  check_input("k", k, "[..., n_kv_heads, T_k, d_head]");
  check_input("v", v, "[..., n_kv_heads, T_k, d_v]");
  if (k.shape.from_back(0) != q.shape.from_back(0))
    core::throw_argument("k", of_shape("d_head", k.shape.from_back(0), k),
                         of_shape("q's d_head", q.shape.from_back(0), q));
  if (v.shape.from_back(1) != k.shape.from_back(1))
    core::throw_argument("v", of_shape("T_k", v.shape.from_back(1), v),
                         of_shape("k's T_k", k.shape.from_back(1), k));
}

std::size_t heads_of(const ConstTensorView& view) {
  return view.rank() < 3 ? 1 : view.shape.from_back(2);
}

// Sets the head counts. A head count of 1 broadcasts, as every leading dim does.
void set_heads(Problem& p, const ConstTensorView& q, const ConstTensorView& k,
               const ConstTensorView& v, bool enable_gqa) {
  const std::size_t q_heads = heads_of(q), k_heads = heads_of(k), v_heads = heads_of(v);
  if (k_heads != v_heads && k_heads != 1 && v_heads != 1)
    core::throw_argument("v", of_shape("n_kv_heads", v_heads, v),
                         of_shape("k's n_kv_heads", k_heads, k));
  p.n_kv_heads = k_heads == 1 ? v_heads : k_heads;
  p.n_heads = q_heads == 1 ? p.n_kv_heads : q_heads;
  if (p.n_heads == p.n_kv_heads || p.n_kv_heads == 1) {
    p.group = p.n_kv_heads == 1 ? std::max<std::size_t>(p.n_heads, 1) : 1;
    return;
  }
  const bool from_k = k_heads == p.n_kv_heads;
  const char* name = from_k ? "k" : "v";
  const auto found = [&] { return of_shape("n_kv_heads", p.n_kv_heads, from_k ? k : v); };
  if (!enable_gqa)
    core::throw_argument(name, found(),
                         of_shape("q's n_heads", q_heads, q) + " or 1, as enable_gqa is false");
  if (p.n_kv_heads == 0 || q_heads % p.n_kv_heads != 0)
    core::throw_argument(name, found(), "a divisor of " + of_shape("q's n_heads", q_heads, q));
  p.group = q_heads / p.n_kv_heads;
}

// Merges the dims before the last three of `view` into `leading`, which begins as q's.
void broadcast_leading(const char* name, const ConstTensorView& view, Shape& leading) {
  const std::size_t n_own = view.rank() < 3 ? 0 : view.rank() - 3;
  const std::size_t n_all = std::max(n_own, leading.size());
  Shape merged;
  for (std::size_t n = n_all; n-- > 0;) {  // n dims before the last leading one
    const std::size_t own = n < n_own ? view.shape[n_own - 1 - n] : 1;
    const std::size_t other = n < leading.size() ? leading.from_back(n) : 1;
    if (own != other && own != 1 && other != 1)
      core::throw_argument(
          name, "leading dim " + std::to_string(own) + " in shape " + to_string(view.shape),
          std::to_string(other) + " or 1, to broadcast with the leading dims " +
              to_string(leading));
    merged.push_back(own == 1 ? other : own);
  }
  leading = merged;
}

void set_shapes(Problem& p, const ConstTensorView& q, const ConstTensorView& k,
                const ConstTensorView& v) {
  Shape leading;
  broadcast_leading("q", q, leading);
  broadcast_leading("k", k, leading);
  broadcast_leading("v", v, leading);
  p.o_shape = leading;
  if (std::max({q.rank(), k.rank(), v.rank()}) > 2) p.o_shape.push_back(p.n_heads);
  p.T_q = q.shape.from_back(1);
  p.T_k = k.shape.from_back(1);
  p.d_head = q.shape.from_back(0);
  p.d_v = v.shape.from_back(0);
  p.o_shape.push_back(p.T_q);
  p.o_shape.push_back(p.d_v);

  // Rows of o, and bytes of o, have to be countable; an empty tensor may have huge dims beside 0.
  std::uint64_t rows = 1;
  bool empty = p.n_heads == 0 || p.T_q == 0, fits = true;
  for (const std::size_t n : leading) empty = empty || n == 0;
  for (std::size_t n = 0; n + 1 < p.o_shape.size() && !empty && fits; ++n) {
    const auto product = core::checked_mul(rows, p.o_shape[n]);
    fits = product.has_value();
    if (fits) rows = *product;
  }
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max());
  const auto bytes = core::checked_mul(rows, std::max<std::uint64_t>(p.d_v, 1) * 8);
  if (!empty && (!fits || !bytes || *bytes > kMax))
    core::throw_argument("o", "shape " + to_string(p.o_shape),
                         "a size in bytes that fits the address space");
  for (const std::size_t n : leading) {
    if (n != 1) p.batch.push_back(n);
    p.n_batch *= n;
  }
}

Input input_of(const ConstTensorView& view, const Problem& p) {
  return {view.data, view.dtype,
          broadcast_layout(view.shape, view.strides, kMatrixPerHead, p.o_shape)};
}

void set_terms(Problem& p, const AttentionOptions& options, DType bias_dtype) {
  // Without features every score is 0, and 1 / sqrt(0) must not make it NaN.
  const double fallback = p.d_head == 0 ? 1.0 : 1.0 / std::sqrt(static_cast<double>(p.d_head));
  p.terms.scale = options.scale.value_or(fallback);
  if (options.n_always_visible > p.T_k)
    core::throw_argument("n_always_visible", std::to_string(options.n_always_visible),
                         "at most T_k = " + std::to_string(p.T_k));
  p.terms.n_maskable = p.T_k - options.n_always_visible;
  if (options.causal) {
    const bool top_left = *options.causal == CausalAlign::top_left;
    p.terms.diagonal = top_left ? 0
                                : static_cast<std::ptrdiff_t>(p.terms.n_maskable) -
                                      static_cast<std::ptrdiff_t>(p.T_q);
  }
  core::check_probability("dropout_p", options.dropout_p);
  p.dropout.p = options.dropout_p;
  p.dropout.seed = options.dropout_seed;

  Shape scores = p.o_shape;
  scores[scores.size() - 1] = p.terms.n_maskable;
  const MaskTarget target{bias_dtype, scores};
  if (options.mask) p.masks[0] = check_mask("mask", *options.mask, target);
  if (options.second_mask) p.masks[1] = check_mask("second_mask", *options.second_mask, target);
}

// Shapes of outputs.
Shape output_shape(const Problem& p) { return p.o_shape; }
Shape rows_shape(const Problem& p) { return {p.o_shape.begin(), p.o_shape.end() - 1}; }
Shape scores_shape(const Problem& p) {
  Shape shape = rows_shape(p);
  shape.push_back(p.T_k);
  return shape;
}
Shape average_shape(const Problem& p) {
  Shape shape(p.o_shape.begin(), p.o_shape.end() - std::min<std::size_t>(p.o_shape.size(), 3));
  shape.push_back(p.T_q);
  shape.push_back(p.T_k);
  return shape;
}

// An output that was asked for, and what it has to look like.
struct Wanted {
  const char* name;
  const TensorView& view;
  DType dtype;
  Shape (*shape_of)(const Problem&);
  Axes axes;
  Output& checked;
};

void check_output(const Problem& p, const Wanted& wanted, bool own_memory) {
  if (wanted.view.dtype != wanted.dtype)
    core::throw_dtype(wanted.name, wanted.view.dtype, name_of(wanted.dtype));
  core::check_shape(wanted.name, wanted.view.shape, wanted.shape_of(p));
  if (!own_memory) check_writable(wanted.name, wanted.view);
  // Nothing is to be written to an empty tensor, so no work is planned for it.
  const bool empty = element_count(wanted.view.shape) == 0;
  wanted.checked = {
      empty ? nullptr : wanted.view.data, wanted.view.dtype,
      broadcast_layout(wanted.view.shape, wanted.view.strides, wanted.axes, p.o_shape)};
}

}  // namespace

Problem make_problem(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const AttentionOptions& options, std::optional<DType> bias_dtype,
                     bool own_memory) {
  kernels::require_valid_isa();
  require_valid_kernel();
  if (!own_memory) check_inputs(q, k, v);
  Problem p;
  p.dtype = q.dtype;
  p.row_dtype = q.dtype == DType::f64 ? DType::f64 : DType::f32;
  set_heads(p, q, k, v, options.enable_gqa);
  set_shapes(p, q, k, v);
  p.q = input_of(q, p);
  p.k = input_of(k, p);
  p.v = input_of(v, p);
  set_terms(p, options, bias_dtype.value_or(q.dtype));
  return p;
}

Outputs check_outputs(const Problem& p, const Call& call) {
  Outputs out;
  const AttentionExtras& extras = call.extras;
  const Wanted all[] = {
      {"o", call.o, p.dtype, output_shape, kMatrixPerHead, out.o},
      {"row_max", extras.row_max, p.row_dtype, rows_shape, kRowsPerHead, out.row_max},
      {"row_sum", extras.row_sum, p.row_dtype, rows_shape, kRowsPerHead, out.row_sum},
      {"log_sum_exp", extras.log_sum_exp, p.row_dtype, rows_shape, kRowsPerHead, out.log_sum_exp},
      {"weights", extras.weights, p.dtype, scores_shape, kMatrixPerHead, out.weights},
      {"average_weights", extras.average_weights, p.dtype, average_shape, kMatrixPerBatch,
       out.average_weights},
  };
  const auto is_wanted = [&](const Wanted& w) { return &w == all || w.view.data != nullptr; };
  const auto is_own = [&](const Wanted& w) { return call.own_memory && &w == all; };
  for (const Wanted& wanted : all)
    if (is_wanted(wanted)) check_output(p, wanted, is_own(wanted));
  for (const Wanted& wanted : all) {
    if (!is_wanted(wanted) || is_own(wanted)) continue;
    const auto apart_from = [&](const char* other, const ConstTensorView& view) {
      check_apart(wanted.name, wanted.view, other, view);
    };
    if (!call.own_memory) {
      apart_from("q", call.q);
      apart_from("k", call.k);
      apart_from("v", call.v);
    }
    if (call.options.mask) apart_from("mask", call.options.mask->view());
    if (call.options.second_mask) apart_from("second_mask", call.options.second_mask->view());
    for (const Wanted* other = all; other != &wanted; ++other)
      if (is_wanted(*other)) apart_from(other->name, other->view);
  }
  return out;
}

}  // namespace headwise::attention
