#include "cli/verify_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "headwise/random.h"
#include "headwise/runtime.h"
#include "kernels/attention_weights.h"
#include "kernels/flash_forward.h"
#include "kernels/matmul.h"
#include "support/epsilon.h"
#include "support/reference.h"

namespace headwise::cli {
namespace {

using Kind = kernels::MaskMatrix::Kind;

struct HeadCase {
  std::size_t T_q, T_k, d_head, d_v;
  std::ptrdiff_t diagonal = kernels::kNoDiagonal;
  Kind mask = Kind::none;
  double dropout = 0.0;
};

// One key; sizes beside each block; both masks; several leaves; rows that see no key.
constexpr HeadCase kHeadCases[] = {
    {1, 1, 1, 1},
    {17, 65, 7, 5},
    {65, 130, 64, 33, 0},
    {5, 600, 40, 40, kernels::kNoDiagonal, Kind::keep},
    {33, 513, 16, 16, kernels::kNoDiagonal, Kind::bias},
    {64, 64, 128, 64, kernels::kNoDiagonal, Kind::none, 0.1},
    {3, 1100, 32, 8},
    {70, 66, 8, 8, -3, Kind::ignore, 0.5},
};

struct ProductCase {
  std::size_t M, N, K;
};
constexpr ProductCase kProductCases[] = {{1, 1, 1},     {3, 17, 5},    {33, 65, 64},
                                         {8, 130, 300}, {7, 33, 1025}, {64, 96, 256}};

DType arithmetic(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// Rounding a result to its dtype, beside the error of the arithmetic.
double last_rounding(DType dtype, double value) {
  if (dtype == arithmetic(dtype)) return 0;
  return test::epsilon(dtype) / 2 * std::abs(value) + (dtype == DType::f16 ? 0x1p-25 : 0);
}

double value_at(const Tensor& x, std::size_t i) {
  return test::element(x.view().data, x.dtype(), static_cast<std::ptrdiff_t>(i));
}

kernels::ConstMatrix input_rows(const Tensor& x) {
  return {x.view().data, static_cast<std::ptrdiff_t>(x.shape()[1]), 1};
}

kernels::Matrix output_rows(Tensor& x) {
  return {x.view().data, static_cast<std::ptrdiff_t>(x.shape()[1]), 1};
}

void append_bytes(std::string& bytes, const Tensor& x) {
  bytes.append(static_cast<const char*>(x.view().data), x.size() * size_of(x.dtype()));
}

// One head's inputs and, when run, what the kernels made of them.
class Head {
 public:
  Head(const HeadCase& c, DType dtype, Generator& generator)
      : q_(randn({c.T_q, c.d_head}, generator, dtype)),
        k_(randn({c.T_k, c.d_head}, generator, dtype)),
        v_(randn({c.T_k, c.d_v}, generator, dtype)),
        mask_(make_mask(c, dtype, generator)),
        o_(dtype, {c.T_q, c.d_v}),
        w_(dtype, {c.T_q, c.T_k}),
        row_max_(arithmetic(dtype), {c.T_q}),
        row_sum_(arithmetic(dtype), {c.T_q}) {
    args_.dtype = dtype;
    args_.q = input_rows(q_);
    args_.k = input_rows(k_);
    args_.v = input_rows(v_);
    args_.o = output_rows(o_);
    args_.row_max = row_max_.view().data;
    args_.row_sum = row_sum_.view().data;
    args_.T_q = args_.n_q = c.T_q;
    args_.T_k = c.T_k;
    args_.d_head = c.d_head;
    args_.d_v = c.d_v;
    args_.terms.scale = 1.0 / std::sqrt(static_cast<double>(c.d_head));
    args_.terms.diagonal = c.diagonal;
    if (c.mask != Kind::none)
      args_.terms.masks[0] = {c.mask, mask_.dtype(), mask_.view().data,
                              static_cast<std::ptrdiff_t>(c.T_k), 1};
    args_.dropout = {c.dropout, 1, 2};
  }
  Head(const Head&) = delete;
  Head& operator=(const Head&) = delete;

  const kernels::FlashForwardArgs& args() const { return args_; }
  const Tensor& output() const { return o_; }
  const Tensor& weights() const { return w_; }

  void run() {
    kernels::FlashForwardArgs a = args_;
    const std::size_t block = kernels::flash_forward_block(a.dtype);
    for (a.t0 = 0; a.t0 < a.T_q; a.t0 += block) {
      a.n_q = std::min(block, a.T_q - a.t0);
      kernels::flash_forward(a);
    }
    const kernels::WeightsHead head{args_.q,       args_.k,     args_.row_max,
                                    args_.row_sum, args_.terms, args_.dropout};
    kernels::AttentionWeightsArgs w;
    w.dtype = args_.dtype;
    w.heads = &head;
    w.w = output_rows(w_);
    w.T_q = w.n_q = args_.T_q;
    w.T_k = args_.T_k;
    w.d_head = args_.d_head;
    kernels::attention_weights(w);
  }

 private:
  static Tensor make_mask(const HeadCase& c, DType dtype, Generator& generator) {
    if (c.mask == Kind::bias) return randn({c.T_q, c.T_k}, generator, dtype);
    Tensor mask(DType::boolean, {c.T_q, c.T_k});
    for (std::size_t i = 0; i < mask.size(); ++i)
      static_cast<std::uint8_t*>(mask.view().data)[i] = generator.next_u32() % 3 == 0;
    return mask;
  }

  Tensor q_, k_, v_, mask_, o_, w_, row_max_, row_sum_;
  kernels::FlashForwardArgs args_;
};

// A score is off by about unit * sqrt(d_head) of its terms and a weight by as much of itself; a
// sum over T_k keys adds unit * sqrt(T_k).
double tolerance(const kernels::FlashForwardArgs& a) {
  return 4 * test::epsilon(arithmetic(a.dtype)) *
         std::sqrt(static_cast<double>(a.T_k + a.d_head) + 16);
}

void compare(const Head& head, const test::ReferenceResult& expected, Tally& output,
             Tally& weights) {
  const DType dtype = head.args().dtype;
  const double tol = tolerance(head.args());
  for (std::size_t i = 0; i < expected.o.size(); ++i)
    output.add(value_at(head.output(), i), expected.o[i],
               tol * expected.magnitude[i] + last_rounding(dtype, expected.o[i]),
               expected.magnitude[i]);
  for (std::size_t i = 0; i < expected.p.size(); ++i)
    weights.add(value_at(head.weights(), i), expected.p[i],
                2 * tol * expected.p[i] + last_rounding(dtype, expected.p[i]), expected.p[i]);
  ++output.n_cases;
  ++weights.n_cases;
}

class Product {
 public:
  Product(const ProductCase& c, DType dtype, Generator& generator)
      : c_(c),
        a_(randn({c.M, c.K}, generator, dtype)),
        w_(randn({c.N, c.K}, generator, dtype)),
        bias_(randn({c.N}, generator, dtype)),
        out_(dtype, {c.M, c.N}) {
    packed_ = kernels::PackedWeights(w_, bias_);
    args_.w = &packed_;
    args_.a_dtype = args_.c_dtype = dtype;
    args_.a = a_.view().data;
    args_.a_rows = {1, static_cast<std::ptrdiff_t>(c.K), 0};
    args_.c = out_.view().data;
    args_.c_rows = {1, static_cast<std::ptrdiff_t>(c.N), 0};
    args_.M = c.M;
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  const Tensor& output() const { return out_; }
  void run() { kernels::matmul({&args_, 1}); }

  void compare(Tally& tally) const {
    const DType dtype = out_.dtype();
    for (std::size_t m = 0; m < c_.M; ++m)
      for (std::size_t n = 0; n < c_.N; ++n) {
        double sum = value_at(bias_, n), squares = sum * sum;
        for (std::size_t k = 0; k < c_.K; ++k) {
          const double term = value_at(a_, m * c_.K + k) * value_at(w_, n * c_.K + k);
          sum += term;
          squares += term * term;
        }
        // K roundings, each random and up to half a unit of a partial sum of about sqrt(squares).
        const double size = std::sqrt(squares);
        const double allowed =
            2 * test::epsilon(arithmetic(dtype)) * size * std::sqrt(static_cast<double>(c_.K) + 1) +
            last_rounding(dtype, sum);
        tally.add(value_at(out_, m * c_.N + n), sum, allowed, size);
      }
    ++tally.n_cases;
  }

 private:
  ProductCase c_;
  Tensor a_, w_, bias_, out_;
  kernels::PackedWeights packed_;
  kernels::MatmulArgs args_;
};

}  // namespace

void Tally::add(double found, double expected, double allowed, double scale) {
  const double off = std::abs(found - expected);
  double share = off == 0 ? 0.0 : off / allowed;  // infinite where nothing is allowed
  if (std::isnan(share)) share = std::numeric_limits<double>::infinity();
  if (share <= used_) return;
  used_ = share;
  error = scale > 0 ? off / scale : off;
  bound = scale > 0 ? allowed / scale : allowed;
  ok = ok && share <= 1;
}

std::vector<KernelReport> verify_heads(DType dtype, const std::vector<std::string>& isas,
                                       std::uint64_t seed) {
  std::vector<KernelReport> outputs, weights;
  for (const std::string& name : isas) {
    outputs.push_back({"flash_forward", name, dtype, {}, {}});
    weights.push_back({"attention_weights", name, dtype, {}, {}});
  }
  Generator generator(seed);
  for (const HeadCase& c : kHeadCases) {
    Head head(c, dtype, generator);
    const auto expected = test::reference_attention(test::reference_of(head.args()));
    for (std::size_t i = 0; i < isas.size(); ++i) {
      set_isa(isas[i]);
      head.run();
      compare(head, expected, outputs[i].tally, weights[i].tally);
      append_bytes(outputs[i].bytes, head.output());
      append_bytes(weights[i].bytes, head.weights());
    }
  }
  outputs.insert(outputs.end(), weights.begin(), weights.end());
  return outputs;
}

std::vector<KernelReport> verify_matmul(DType dtype, const std::vector<std::string>& isas,
                                        std::uint64_t seed) {
  std::vector<KernelReport> reports;
  for (const std::string& name : isas) reports.push_back({"matmul", name, dtype, {}, {}});
  Generator generator(seed);
  for (const ProductCase& c : kProductCases) {
    Product product(c, dtype, generator);
    for (KernelReport& report : reports) {
      set_isa(report.isa);
      product.run();
      product.compare(report.tally);
      append_bytes(report.bytes, product.output());
    }
  }
  return reports;
}

}  // namespace headwise::cli
