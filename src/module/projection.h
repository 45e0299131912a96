// The projections of multi-head attention: x W^T + b, into and out of the heads.
#pragma once

#include <cstddef>

#include "headwise/tensor.h"
#include "kernels/matmul.h"
#include "module/parameters.h"
#include "module/torch_rules.h"

namespace headwise::module {

// The tables as the kernel reads them, and the appended key and value in its arithmetic.
struct Projections {
  // Shares the tables of `before` that it was made from and that have not changed; the parameters
  // of `before` are still there.
  explicit Projections(const Parameters& parameters, const Projections* before = nullptr);

  kernels::PackedWeights q, k, v, out;
  Tensor bias_k, bias_v;  // [kv_width], empty without add_bias_kv

  DType dtype() const { return q.dtype(); }  // f32, or f64 in an f64 module
  // Of q, k, v and the heads' outputs in a module of `dtype`: that of the arithmetic. bf16 where
  // the CPU's fast products are of bf16; the rounding is torch's too.
  DType heads_dtype(DType module) const;

 private:
  const void* sources_[4];  // where the weights of q, k, v and out were when they were packed
};

// [rows, width] in the order of an input's rows, padded to what the products write at once and so
// that rows do not share their place in the caches. Memory is the caller's.
struct HeadsBuffer {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::size_t width = 0, ld = 0;  // elements of a row, and from one row to the next
  std::size_t outer = 0, inner = 0;
  bool batch_outer = false;

  // Shapes of an input whose rows have `appended` steps more in time.
  HeadsBuffer(const Rows& rows, std::size_t width, std::size_t appended, DType dtype);
  std::size_t bytes() const { return outer * inner * ld * size_of(dtype); }
  TensorView heads(std::size_t n_heads) const;  // [B, n_heads, T, d_head]
  kernels::RowLayout row_layout() const;
  std::byte* step(std::size_t t, std::size_t b) const;  // the row of one time step
};

// What attention reads and writes in a call.
struct Heads {
  Heads(const Call& call, const Sizes& sizes, DType dtype);

  HeadsBuffer q, k, v, o;
};

// q, k and v of a call, in one parallel region; then the appended steps of k and v.
void project_inputs(const Projections& projections, const Call& call, const Heads& heads);

// The product of an input's rows with a table: those of `out` but for the appended steps.
kernels::MatmulArgs product_of_rows(const kernels::PackedWeights& w, const Rows& rows,
                                    const HeadsBuffer& out);
// The product of heads, but for `appended` steps of theirs, with a table, into `out`, [outer,
// inner, width] or unbatched, and rounded to its dtype.
kernels::MatmulArgs product_of_heads(const kernels::PackedWeights& w, const HeadsBuffer& heads,
                                     const TensorView& out);

// Rounded to the dtype of `output`, [outer, inner, embed_dim] as the query, or unbatched.
void project_output(const Projections& projections, const HeadsBuffer& o, const TensorView& output);

}  // namespace headwise::module
