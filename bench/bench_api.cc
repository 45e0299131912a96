// The calls that bench/compare.py times, as C functions. Each runs its call n times and returns the
// seconds that took, or -1 after an exception, whose text bench_error() has.
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <string>

#include "headwise/headwise.h"

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

// Contiguous q [B, n_heads, T_q, d], k and v [B, n_kv_heads, T_k, d], o like q.
struct AttentionCase {
  const void *q, *k, *v;
  void* o;
  std::size_t B, n_heads, n_kv_heads, T_q, T_k, d;
  int dtype, causal;
};

BENCH_API double bench_attention(const AttentionCase* c, int n) {
  const auto dtype = static_cast<DType>(c->dtype);
  const ConstTensorView q(c->q, dtype, {c->B, c->n_heads, c->T_q, c->d});
  const ConstTensorView k(c->k, dtype, {c->B, c->n_kv_heads, c->T_k, c->d});
  const ConstTensorView v(c->v, dtype, {c->B, c->n_kv_heads, c->T_k, c->d});
  const TensorView o(c->o, dtype, {c->B, c->n_heads, c->T_q, c->d});
  headwise::AttentionOptions options;
  if (c->causal != 0) options.causal = headwise::CausalAlign::top_left;
  return seconds([&] {
    for (int i = 0; i < n; ++i) headwise::scaled_dot_product_attention(q, k, v, options, o);
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
// Self-attention on x [B, T, embed_dim]; what the last call returned is copied to `out` and
// `weights` (null: not wanted) after the clock has stopped.
BENCH_API double bench_module_forward(const void* module, const void* x, std::size_t B,
                                      std::size_t T, void* out, void* weights, int n) {
  const auto* m = static_cast<const headwise::MultiheadAttention*>(module);
  const DType dtype = m->options().dtype;
  const ConstTensorView view(x, dtype, {B, T, m->options().embed_dim});
  headwise::ForwardOptions options;
  options.need_weights = weights != nullptr;
  headwise::ForwardResult result;
  const double time = seconds([&] {
    for (int i = 0; i < n; ++i) result = m->forward(view, view, view, options);
  });
  if (time < 0) return time;
  const std::size_t size = headwise::size_of(dtype);
  std::memcpy(out, result.output.view().data, result.output.size() * size);
  if (result.weights)
    std::memcpy(weights, result.weights->view().data, result.weights->size() * size);
  return time;
}
