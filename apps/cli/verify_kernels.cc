#include "cli/verify_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "headwise/attention.h"
#include "headwise/plan.h"
#include "headwise/random.h"
#include "headwise/runtime.h"
#include "kernels/matmul.h"
#include "support/epsilon.h"
#include "support/reference.h"
#include "support/weight_rounding.h"

namespace headwise::cli {
namespace {

struct HeadCase {
  std::size_t T_q, T_k, d_head, d_v;
  std::optional<CausalAlign> causal = std::nullopt;
  std::optional<Mask::Kind> mask = std::nullopt;
  double dropout = 0.0;
};

// One key; sizes beside each block; every mask; several leaves; rows that see no key.
constexpr HeadCase kHeadCases[] = {
    {1, 1, 1, 1},
    {17, 65, 7, 5},
    {65, 130, 64, 33, CausalAlign::top_left},
    {5, 600, 40, 40, std::nullopt, Mask::Kind::keep},
    {33, 513, 16, 16, std::nullopt, Mask::Kind::bias},
    {64, 64, 128, 64, std::nullopt, std::nullopt, 0.1},
    {3, 1100, 32, 8},
    {1, 1100, 33, 65, std::nullopt, Mask::Kind::ignore},
    {70, 66, 8, 8, CausalAlign::bottom_right, Mask::Kind::ignore, 0.5},
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

// A score is off by about unit * sqrt(d_head) of its terms and a weight by as much of itself; a
// sum over T_k keys adds unit * sqrt(T_k).
double tolerance(DType dtype, std::size_t T_k, std::size_t d_head) {
  return 4 * test::epsilon(arithmetic(dtype)) * std::sqrt(static_cast<double>(T_k + d_head) + 16);
}

double value_at(const Tensor& x, std::size_t i) {
  return test::element(x.view().data, x.dtype(), static_cast<std::ptrdiff_t>(i));
}

void append_bytes(std::string& bytes, const Tensor& x) {
  bytes.append(static_cast<const char*>(x.view().data), x.size() * size_of(x.dtype()));
}

// One head's inputs and, when run, what a kernel made of them.
class Head {
 public:
  Head(const HeadCase& c, DType dtype, Generator& generator)
      : q_(randn({c.T_q, c.d_head}, generator, dtype)),
        k_(randn({c.T_k, c.d_head}, generator, dtype)),
        v_(randn({c.T_k, c.d_v}, generator, dtype)),
        mask_(make_mask(c, dtype, generator)),
        o_(dtype, {c.T_q, c.d_v}),
        w_(dtype, {c.T_q, c.T_k}) {
    options_.causal = c.causal;
    if (c.mask == Mask::Kind::keep) options_.mask = Mask::keep(mask_);
    if (c.mask == Mask::Kind::ignore) options_.mask = Mask::ignore(mask_);
    if (c.mask == Mask::Kind::bias) options_.mask = Mask::bias(mask_);
    options_.dropout_p = c.dropout;
    options_.dropout_seed = 1;
  }
  Head(const Head&) = delete;
  Head& operator=(const Head&) = delete;

  DType dtype() const { return q_.dtype(); }
  const Tensor& output() const { return o_; }
  const Tensor& weights() const { return w_; }
  AttentionPlan plan() const { return explain_attention(q_, k_, v_, options_); }

  void run() {
    AttentionExtras extras;
    extras.weights = w_.view();
    scaled_dot_product_attention(q_, k_, v_, options_, o_.view(), extras);
  }

  test::ReferenceResult reference() const {
    test::ReferenceHead head;
    head.T_q = q_.shape()[0];
    head.T_k = k_.shape()[0];
    head.d_head = q_.shape()[1];
    head.d_v = v_.shape()[1];
    head.q = [&](std::size_t t, std::size_t i) { return value_at(q_, t * head.d_head + i); };
    head.k = [&](std::size_t j, std::size_t i) { return value_at(k_, j * head.d_head + i); };
    head.v = [&](std::size_t j, std::size_t i) { return value_at(v_, j * head.d_v + i); };
    head.bias = [&](std::size_t t, std::size_t j) { return term(t, j); };
    head.scale = 1.0 / std::sqrt(static_cast<double>(head.d_head));
    head.dropout = {options_.dropout_p, options_.dropout_seed, 0};
    return test::reference_attention(head);
  }

  std::size_t T_k() const { return k_.shape()[0]; }
  std::size_t d_head() const { return k_.shape()[1]; }

 private:
  static Tensor make_mask(const HeadCase& c, DType dtype, Generator& generator) {
    if (c.mask == Mask::Kind::bias) return randn({c.T_q, c.T_k}, generator, dtype);
    Tensor mask(DType::boolean, {c.T_q, c.T_k});
    for (std::size_t i = 0; i < mask.size(); ++i)
      static_cast<std::uint8_t*>(mask.view().data)[i] = generator.next_u32() % 3 == 0;
    return mask;
  }

  // What causal and the mask add to score (t, j).
  double term(std::size_t t, std::size_t j) const {
    const std::size_t T_q = q_.shape()[0], T_k = k_.shape()[0];
    if (options_.causal == CausalAlign::top_left && j > t) return -test::kInfinity;
    if (options_.causal == CausalAlign::bottom_right && j + T_q > t + T_k) return -test::kInfinity;
    if (!options_.mask) return 0.0;
    const double x = value_at(mask_, t * T_k + j);
    const Mask::Kind kind = options_.mask->kind();
    if (kind == Mask::Kind::bias) return x;
    return (x != 0) == (kind == Mask::Kind::keep) ? 0.0 : -test::kInfinity;
  }

  Tensor q_, k_, v_, mask_, o_, w_;
  AttentionOptions options_;
};

void compare_output(const Head& head, const test::ReferenceResult& expected, KernelReport& report) {
  for (std::size_t i = 0; i < expected.o.size(); ++i)
    report.tally.add(value_at(head.output(), i), expected.o[i],
                     attention_bound(report.kernel, head.dtype(), head.T_k(), head.d_head(),
                                     expected.o[i], expected.magnitude[i]),
                     expected.magnitude[i]);
  ++report.tally.n_cases;
}

void compare_weights(const Head& head, const test::ReferenceResult& expected, Tally& tally) {
  const double relative = 2 * tolerance(head.dtype(), head.T_k(), head.d_head());
  for (std::size_t i = 0; i < expected.p.size(); ++i)
    tally.add(value_at(head.weights(), i), expected.p[i],
              relative * expected.p[i] + last_rounding(head.dtype(), expected.p[i]), expected.p[i]);
  ++tally.n_cases;
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

double attention_bound(const std::string& kernel, DType dtype, std::size_t T_k, std::size_t d_head,
                       double expected, double magnitude) {
  const double weights = test::weight_rounding(std::string_view(kernel));
  return (tolerance(dtype, T_k, d_head) + weights) * magnitude + last_rounding(dtype, expected);
}

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

std::vector<KernelReport> verify_attention(DType dtype, const std::string& kernel,
                                           const std::vector<std::string>& isas,
                                           std::uint64_t seed) {
  set_kernel(kernel);
  std::vector<KernelReport> outputs, weights;
  for (const std::string& name : isas) {
    outputs.push_back({kernel, name, dtype, {}, {}});
    weights.push_back({"attention_weights", name, dtype, {}, {}});
  }
  Generator generator(seed);
  for (const HeadCase& c : kHeadCases) {
    Head head(c, dtype, generator);
    const auto expected = head.reference();
    for (std::size_t i = 0; i < isas.size(); ++i) {
      set_isa(isas[i]);
      if (head.plan().kernel != kernel) continue;  // not for this dtype, or not here
      head.run();
      compare_output(head, expected, outputs[i]);
      compare_weights(head, expected, weights[i].tally);
      append_bytes(outputs[i].bytes, head.output());
      append_bytes(weights[i].bytes, head.weights());
    }
  }
  // The weights follow from the kernel's row max and row sum; one kernel's are enough.
  if (kernel == available_kernels().front())
    outputs.insert(outputs.end(), weights.begin(), weights.end());
  std::erase_if(outputs, [](const KernelReport& report) { return report.tally.n_cases == 0; });
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
