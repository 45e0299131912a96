// The calls that the benchmarks time, as C functions. Each runs its call n times and returns the
// seconds that took, or -1 after an exception, whose text bench_error() has.
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <string>

#include "headwise/headwise.h"
#include "machine_limits.h"

#define BENCH_API extern "C" HEADWISE_API

namespace {

using headwise::ConstTensorView;
using headwise::DType;
using headwise::Shape;
using headwise::TensorView;

std::string error;

template <typename F>
double seconds(F&& body) {
  try {
    const auto start = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  } catch (const std::exception& e) {
    error = e.what();
    return -1.0;
  }
}

}  // namespace

BENCH_API const char* bench_error() { return error.c_str(); }
BENCH_API void bench_set_threads(int n) { headwise::set_num_threads(n); }
BENCH_API const char* bench_isa() {
  static const std::string name = headwise::isa();
  return name.c_str();
}

BENCH_API double bench_fma_flops(int n_threads) { return headwise::bench::fma_flops(n_threads); }
BENCH_API double bench_bf16_dot_flops(int n_threads) {
  return headwise::bench::bf16_dot_flops(n_threads);
}
BENCH_API double bench_amx_bf16_flops(int n_threads) {
  return headwise::bench::amx_bf16_flops(n_threads);
}
BENCH_API double bench_read_bytes_per_second(int n_threads) {
  return headwise::bench::read_bytes_per_second(n_threads);
}

// Contiguous q [B, n_heads, T_q, d], k and v [B, n_kv_heads, T_k, d], o like q. The mask, null for
// none, has a dim of 1 where it is the same for all.
struct AttentionCase {
  const void *q, *k, *v, *mask;
  void* o;
  std::size_t B, n_heads, n_kv_heads, T_q, T_k, d, mask_shape[4];
  int dtype, causal, mask_is_bias;  // else: boolean, true keeps
};

namespace {

struct Inputs {
  ConstTensorView q, k, v;
  TensorView o;
  headwise::AttentionOptions options;
};

Inputs inputs_of(const AttentionCase* c) {
  const auto dtype = static_cast<DType>(c->dtype);
  const ConstTensorView q(c->q, dtype, {c->B, c->n_heads, c->T_q, c->d});
  const ConstTensorView k(c->k, dtype, {c->B, c->n_kv_heads, c->T_k, c->d});
  const ConstTensorView v(c->v, dtype, {c->B, c->n_kv_heads, c->T_k, c->d});
  const TensorView o(c->o, dtype, {c->B, c->n_heads, c->T_q, c->d});
  headwise::AttentionOptions options;
  if (c->causal != 0) options.causal = headwise::CausalAlign::top_left;
  if (c->mask != nullptr) {
    const Shape shape(c->mask_shape, c->mask_shape + 4);
    options.mask = c->mask_is_bias != 0 ? headwise::Mask::bias({c->mask, dtype, shape})
                                        : headwise::Mask::keep({c->mask, DType::boolean, shape});
  }
  return {q, k, v, o, options};
}

}  // namespace

BENCH_API double bench_attention(const AttentionCase* c, int n) {
  return seconds([&] {
    const Inputs in = inputs_of(c);
    for (int i = 0; i < n; ++i)
      headwise::scaled_dot_product_attention(in.q, in.k, in.v, in.options, in.o);
  });
}

// d_o and dq like q; row_max and row_sum [B, n_heads, T_q] of f32 (f64 for f64); dk and dv like k.
struct Gradients {
  const void* d_o;
  void *row_max, *row_sum, *dq, *dk, *dv;
};

// Forward and backward.
BENCH_API double bench_attention_training(const AttentionCase* c, const Gradients* g, int n) {
  return seconds([&] {
    const Inputs in = inputs_of(c);
    const DType dtype = in.q.dtype, rows = dtype == DType::f64 ? DType::f64 : DType::f32;
    const Shape rows_shape{c->B, c->n_heads, c->T_q};
    headwise::AttentionExtras extras;
    extras.row_max = {g->row_max, rows, rows_shape};
    extras.row_sum = {g->row_sum, rows, rows_shape};
    const headwise::AttentionState state{
        {g->d_o, dtype, in.q.shape}, in.o, extras.row_max, extras.row_sum};
    const headwise::AttentionGradients wanted{
        {g->dq, dtype, in.q.shape}, {g->dk, dtype, in.k.shape}, {g->dv, dtype, in.v.shape}, {}, {}};
    for (int i = 0; i < n; ++i) {
      headwise::scaled_dot_product_attention(in.q, in.k, in.v, in.options, in.o, extras);
      headwise::scaled_dot_product_attention_backward(in.q, in.k, in.v, in.options, state, wanted);
    }
  });
}

// A module with torch's parameters, batch_first, in evaluation.
BENCH_API void* bench_module_new(std::size_t embed_dim, std::size_t num_heads, int dtype) {
  headwise::MultiheadAttention* module = nullptr;
  seconds([&] {
    module = new headwise::MultiheadAttention({.embed_dim = embed_dim,
                                               .num_heads = num_heads,
                                               .batch_first = true,
                                               .dtype = static_cast<DType>(dtype)});
    module->eval();
  });
  return module;
}
BENCH_API void bench_module_free(void* module) {
  delete static_cast<headwise::MultiheadAttention*>(module);
}
// rows 0: a vector.
BENCH_API double bench_module_set(void* module, const char* name, const void* data,
                                  std::size_t rows, std::size_t columns) {
  auto* m = static_cast<headwise::MultiheadAttention*>(module);
  const Shape shape = rows == 0 ? Shape{columns} : Shape{rows, columns};
  return seconds([&] { m->set_parameter(name, {data, m->options().dtype, shape}); });
}
// A training step without its optimizer: self-attention on x [B, T, embed_dim], forward and
// backward. Writes d_x and the gradient of in_proj_weight, of one step.
BENCH_API double bench_module_training(void* module, const void* x, const void* d_output,
                                       std::size_t B, std::size_t T, void* d_x,
                                       void* d_in_proj_weight, int n) {
  auto* m = static_cast<headwise::MultiheadAttention*>(module);
  const Shape shape{B, T, m->options().embed_dim};
  const ConstTensorView view(x, m->options().dtype, shape), d(d_output, m->options().dtype, shape);
  const TensorView d_view(d_x, m->options().dtype, shape);
  headwise::ForwardOptions options;
  options.need_weights = false;
  headwise::ParameterGradients gradients(*m);
  headwise::SavedForward saved;
  const double taken = seconds([&] {
    for (int i = 0; i < n; ++i) {
      gradients.zero();
      m->forward(view, view, view, options, saved);
      m->backward(saved, {d}, gradients, {d_view, d_view, d_view, {}, {}});
    }
  });
  const TensorView table = gradients.view("in_proj_weight");
  std::memcpy(d_in_proj_weight, table.data,
              headwise::element_count(table.shape) * headwise::size_of(table.dtype));
  return taken;
}
// Self-attention on x [B, T, embed_dim] into `out` and averaged `weights` (null: not wanted).
BENCH_API double bench_module_forward(const void* module, const void* x, std::size_t B,
                                      std::size_t T, void* out, void* weights, int n) {
  const auto* m = static_cast<const headwise::MultiheadAttention*>(module);
  const DType dtype = m->options().dtype;
  const Shape shape{B, T, m->options().embed_dim};
  const ConstTensorView view(x, dtype, shape);
  const TensorView output(out, dtype, shape);
  const TensorView average =
      weights == nullptr ? TensorView() : TensorView(weights, dtype, {B, T, T});
  return seconds([&] {
    for (int i = 0; i < n; ++i) m->forward(view, view, view, {}, output, average);
  });
}
