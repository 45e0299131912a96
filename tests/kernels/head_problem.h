// Inputs of one head for the kernel tests: arrays with padded rows, filled with reproducible
// numbers, and the comparison with the definition.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/dtype.h"
#include "kernels/bf16/amx_forward.h"
#include "kernels/bf16/dot_forward.h"
#include "kernels/flash_forward.h"
#include "support/epsilon.h"
#include "support/reference.h"
#include "support/weight_rounding.h"

namespace headwise::test {

// A matrix of any dtype with `pad` elements of NaN after each row and each element `step` apart.
class Array {
 public:
  Array() = default;
  Array(DType dtype, std::size_t rows, std::size_t cols, std::size_t pad = 0, std::size_t step = 1)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        step_(step),
        stride_(cols * step + pad),
        bytes_((rows * stride_ + 1) * size_of(dtype)) {
    for (std::size_t i = 0; i < rows * stride_ + 1; ++i) set_flat(i, kNaN);
  }

  void set(std::size_t r, std::size_t c, double x) { set_flat(r * stride_ + c * step_, x); }
  double at(std::size_t r, std::size_t c) const {
    return element(bytes_.data(), dtype_, static_cast<std::ptrdiff_t>(r * stride_ + c * step_));
  }
  void fill(std::uint64_t seed, double scale = 1.0) {
    std::uint64_t x = seed * 0x9E3779B97F4A7C15u + 1;
    for (std::size_t r = 0; r < rows_; ++r)
      for (std::size_t c = 0; c < cols_; ++c) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        set(r, c, scale * 1.7 * (static_cast<double>(x >> 11) * 0x1p-52 - 1));
      }
  }
  kernels::ConstMatrix view() const {
    return {bytes_.data(), static_cast<std::ptrdiff_t>(stride_),
            static_cast<std::ptrdiff_t>(step_)};
  }
  kernels::Matrix view() {
    return {bytes_.data(), static_cast<std::ptrdiff_t>(stride_),
            static_cast<std::ptrdiff_t>(step_)};
  }
  kernels::MaskMatrix mask(kernels::MaskMatrix::Kind kind) const {
    return {kind, dtype_, bytes_.data(), static_cast<std::ptrdiff_t>(rows_ == 1 ? 0 : stride_),
            static_cast<std::ptrdiff_t>(cols_ == 1 ? 0 : step_)};
  }
  const std::vector<unsigned char>& bytes() const { return bytes_; }
  std::size_t rows() const { return rows_; }
  std::size_t cols() const { return cols_; }

 private:
  void set_flat(std::size_t i, double x) {
    unsigned char* to = bytes_.data() + i * size_of(dtype_);
    const auto put = [to](auto value) { std::memcpy(to, &value, sizeof(value)); };
    switch (dtype_) {
      case DType::f32:
        return put(static_cast<float>(x));
      case DType::f64:
        return put(x);
      case DType::bf16:
        return put(bfloat16(static_cast<float>(x)));
      case DType::f16:
        return put(float16(static_cast<float>(x)));
      default:
        return put(static_cast<std::uint8_t>(x != 0 ? 2 : 0));  // true need not be 1
    }
  }

  DType dtype_ = DType::f32;
  std::size_t rows_ = 0, cols_ = 0, step_ = 1, stride_ = 0;
  std::vector<unsigned char> bytes_;
};

// A kernel on numbers of one dtype. Just a DType stands for flash_forward.
struct Arithmetic {
  Arithmetic(DType type) : dtype(type) {}  // NOLINT(google-explicit-constructor)
  Arithmetic(const char* kernel_name, DType type, void (*kernel)(const kernels::FlashForwardArgs&))
      : name(kernel_name), dtype(type), forward(kernel) {}
  operator DType() const { return dtype; }  // NOLINT(google-explicit-constructor)

  const char* name = "flash";
  DType dtype;
  void (*forward)(const kernels::FlashForwardArgs&) = kernels::flash_forward;
  bool drops() const { return forward != kernels::bf16_amx_forward; }  // does it know dropout?
};

inline std::ostream& operator<<(std::ostream& out, const Arithmetic& a) {
  return out << a.name << " " << name_of(a.dtype);
}

// One for each kernel that the active instruction set has, and for the types with their own
// arithmetic.
inline std::vector<Arithmetic> each_kernel() {
  std::vector<Arithmetic> all{DType::f32, DType::f64};
  if (kernels::bf16_amx_available())
    all.emplace_back("bf16_amx", DType::bf16, kernels::bf16_amx_forward);
  if (kernels::bf16_dot_available())
    all.emplace_back("bf16_dot", DType::bf16, kernels::bf16_dot_forward);
  return all;
}

// Also the types that are widened.
inline std::vector<Arithmetic> all_types() {
  std::vector<Arithmetic> all = each_kernel();
  all.insert(all.end(), {DType::bf16, DType::f16});
  return all;
}

inline DType stats_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

struct HeadProblem {
  struct Sizes {
    std::size_t T_q, T_k, d_head, d_v;
  };
  HeadProblem(const Arithmetic& kernel, Sizes s, std::size_t pad = 3, std::size_t step = 1,
              std::uint64_t seed = 1)
      : arithmetic(kernel),
        dtype(kernel.dtype),
        sizes(s),
        q(dtype, s.T_q, s.d_head, pad, step),
        k(dtype, s.T_k, s.d_head, pad, step),
        v(dtype, s.T_k, s.d_v, pad, step) {
    q.fill(seed);
    k.fill(seed + 100);
    v.fill(seed + 200);
    terms.scale = s.d_head == 0 ? 1.0 : 1.0 / std::sqrt(static_cast<double>(s.d_head));
  }

  Arithmetic arithmetic;
  DType dtype;
  Sizes sizes;
  Array q, k, v;
  kernels::ScoreTerms terms;
  kernels::Dropout dropout;
};

struct HeadResult {
  Array o, m, l;
};

inline kernels::FlashForwardArgs args_of(const HeadProblem& p, HeadResult& r) {
  kernels::FlashForwardArgs a;
  a.dtype = p.dtype;
  a.q = p.q.view();
  a.k = p.k.view();
  a.v = p.v.view();
  a.o = r.o.view();
  a.row_max = r.m.view().data;
  a.row_sum = r.l.view().data;
  a.T_q = p.sizes.T_q;
  a.T_k = p.sizes.T_k;
  a.d_head = p.sizes.d_head;
  a.d_v = p.sizes.d_v;
  a.n_q = p.sizes.T_q;
  a.terms = p.terms;
  a.dropout = p.dropout;
  return a;
}

// Runs the kernel in calls of `block` queries.
inline HeadResult run(const HeadProblem& p, std::size_t block = 0, std::size_t step = 1) {
  HeadResult r{Array(p.dtype, p.sizes.T_q, p.sizes.d_v, 5, step),
               Array(stats_dtype(p.dtype), p.sizes.T_q, 1),
               Array(stats_dtype(p.dtype), p.sizes.T_q, 1)};
  kernels::FlashForwardArgs a = args_of(p, r);
  if (block == 0) block = kernels::flash_forward_block(p.dtype);
  for (a.t0 = 0; a.t0 < a.T_q; a.t0 += block) {
    a.n_q = std::min(block, a.T_q - a.t0);
    p.arithmetic.forward(a);
  }
  return r;
}

inline bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Errors: a score is off by about eps * sqrt(d_head) * its terms, and a weight by as much of
// itself; summing T_k terms adds eps * sqrt(T_k). 16 covers the constants; 16-bit results are
// rounded last.
inline double tolerance(const HeadProblem& p) {
  const double n = static_cast<double>(p.sizes.T_k + p.sizes.d_head) + 16;
  return 4 * epsilon(stats_dtype(p.dtype)) * std::sqrt(n);
}

inline void expect_close(const HeadProblem& p, const HeadResult& r) {
  HeadResult scratch = r;
  const ReferenceResult expected = reference_attention(reference_of(args_of(p, scratch)));
  const double tol = tolerance(p), last = epsilon(p.dtype) / 2;
  const double rounding = weight_rounding(std::string_view(p.arithmetic.name));
  const double stats_last = epsilon(stats_dtype(p.dtype)) * 4;
  for (std::size_t t = 0; t < p.sizes.T_q; ++t) {
    const double m = expected.m[t], l = expected.l[t];
    if (!std::isfinite(m))
      EXPECT_TRUE(same(r.m.at(t, 0), m) && same(r.l.at(t, 0), l))
          << "row " << t << " m " << r.m.at(t, 0) << " l " << r.l.at(t, 0) << " expected " << m;
    else {
      EXPECT_NEAR(r.m.at(t, 0), m, tol + std::abs(m) * stats_last) << "row " << t;
      EXPECT_NEAR(r.l.at(t, 0), l,
                  l * (tol + sum_rounding(p.arithmetic.name) + std::abs(m) * stats_last))
          << "row " << t;
    }
    for (std::size_t i = 0; i < p.sizes.d_v; ++i) {
      const double o = expected.o[t * p.sizes.d_v + i], found = r.o.at(t, i);
      const double scale = expected.magnitude[t * p.sizes.d_v + i];
      if (!std::isfinite(o))
        EXPECT_TRUE(same(found, o))
            << "row " << t << ", dim " << i << ": " << found << " not " << o;
      else
        EXPECT_NEAR(found, o,
                    (tol + rounding) * scale + last * std::abs(o) + 0x1p-24 * (last > 1e-4))
            << "row " << t << ", dim " << i;
    }
  }
}

inline void expect_same_bits(const HeadResult& a, const HeadResult& b) {
  const auto equal = [](const Array& x, const Array& y) {
    for (std::size_t r = 0; r < x.rows(); ++r)
      for (std::size_t c = 0; c < x.cols(); ++c) {
        const double u = x.at(r, c), v = y.at(r, c);
        if (!same(u, v) || std::signbit(u) != std::signbit(v))
          if (!std::isnan(u)) return false;
      }
    return true;
  };
  EXPECT_TRUE(equal(a.o, b.o) && equal(a.m, b.m) && equal(a.l, b.l));
}

}  // namespace headwise::test
