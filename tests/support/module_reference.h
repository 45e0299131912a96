// The definition of multi-head attention with its projections, in double, element by element, with
// torch's rules for masks and appended columns: what MultiheadAttention is compared with. Shares
// nothing with the library's arithmetic but the reference generator of dropout.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "headwise/multihead_attention.h"
#include "support/reference.h"

namespace headwise::test {

// Element (i, j, ...) of a view of any floating or boolean dtype.
inline double element(const ConstTensorView& view, std::initializer_list<std::size_t> index) {
  std::ptrdiff_t offset = 0;
  std::size_t dim = 0;
  for (std::size_t i : index) offset += static_cast<std::ptrdiff_t>(i) * view.strides[dim++];
  return element(view.data, view.dtype, offset);
}

struct ModuleResult {
  std::size_t B = 0, T_q = 0, S = 0, H = 0, E = 0;
  std::vector<double> output;   // [B, T_q, E] whatever the layout
  std::vector<double> weights;  // [B, H, T_q, S]
  std::vector<double> scale;    // [B, T_q]: the size that rounding errors of an output row have

  double average_weight(std::size_t b, std::size_t t, std::size_t j) const {
    double sum = 0;
    for (std::size_t h = 0; h < H; ++h) sum += weights[((b * H + h) * T_q + t) * S + j];
    return sum / static_cast<double>(H);
  }
};

class ModuleReference {
 public:
  ModuleReference(const MultiheadAttention& module, const ForwardOptions& options)
      : module_(module), o_(module.options()), options_(options), state_(module.parameters()) {}

  ModuleResult forward(const ConstTensorView& query, const ConstTensorView& key,
                       const ConstTensorView& value) {
    const bool batched = query.rank() == 3, seq_first = batched && !o_.batch_first;
    const std::size_t t_dim = batched && o_.batch_first ? 1 : 0;
    ModuleResult r;
    r.B = batched ? query.shape[seq_first ? 1 : 0] : 1;
    r.T_q = query.shape[t_dim];
    T_k_ = key.shape[t_dim];
    r.S = T_k_ + (o_.add_bias_kv ? 1 : 0) + (o_.add_zero_attn ? 1 : 0);
    r.H = o_.num_heads;
    r.E = o_.embed_dim;
    d_ = module_.head_dim();
    r.output.assign(r.B * r.T_q * r.E, 0);
    r.scale.assign(r.B * r.T_q, 0);
    for (std::size_t b = 0; b < r.B; ++b) {
      const auto at = [&](const ConstTensorView& x) {
        return [&x, b, batched, seq_first](std::size_t t, std::size_t i) {
          if (!batched) return element(x, {t, i});
          return seq_first ? element(x, {t, b, i}) : element(x, {b, t, i});
        };
      };
      batch(b, at(query), at(key), at(value), r);
    }
    return r;
  }

 private:
  using Element = std::function<double(std::size_t, std::size_t)>;

  const ConstTensorView* find(const std::string& name) const {
    for (const NamedView& p : state_)
      if (p.name == name) return &p.view;
    return nullptr;
  }

  std::size_t width(std::size_t part) const {
    return d_ * (part == 0 ? o_.num_heads : module_.num_kv_heads());
  }

  // Row `row` of projection 0, 1, 2 (q, k, v) applied to x.
  double project(std::size_t part, std::size_t row, const Element& x, std::size_t t) const {
    static const char* const separate[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    std::size_t packed_row = row;
    for (std::size_t p = 0; p < part; ++p) packed_row += width(p);
    const ConstTensorView* w = find("in_proj_weight");
    if (w == nullptr) w = find("qkv_proj.weight");
    const bool packed = w != nullptr;
    if (!packed) w = find(separate[part]);
    const ConstTensorView* bias = find("in_proj_bias");
    double sum = bias == nullptr ? 0 : element(*bias, {packed_row});
    for (std::size_t i = 0; i < w->shape[1]; ++i)
      sum += element(*w, {packed ? packed_row : row, i}) * x(t, i);
    return sum;
  }

  // [T, width], with the appended steps.
  std::vector<double> heads(std::size_t part, std::size_t T, const Element& x) const {
    std::vector<double> y;
    for (std::size_t t = 0; t < T; ++t)
      for (std::size_t n = 0; n < width(part); ++n) y.push_back(project(part, n, x, t));
    if (part == 0) return y;
    if (o_.add_bias_kv)
      for (std::size_t n = 0; n < width(part); ++n)
        y.push_back(element(*find(part == 1 ? "bias_k" : "bias_v"), {0, 0, n}));
    if (o_.add_zero_attn) y.resize(y.size() + width(part));
    return y;
  }

  double mask_bias(const Mask& mask, double x) const {
    if (mask.kind() == Mask::Kind::bias) return x;
    return (x != 0) == (mask.kind() == Mask::Kind::ignore) ? -kInfinity : 0.0;
  }

  double bias(std::size_t b, std::size_t h, std::size_t t, std::size_t j) const {
    if (j >= T_k_) return 0;
    double sum = 0;
    if (options_.attn_mask) {
      const ConstTensorView& m = options_.attn_mask->view();
      const double x = m.rank() == 2   ? element(m, {t, j})
                       : m.rank() == 3 ? element(m, {b * o_.num_heads + h, t, j})
                                       : element(m, {b, m.shape[1] == 1 ? 0 : h, t, j});
      sum += mask_bias(*options_.attn_mask, x);
    } else if (options_.is_causal && j > t) {
      return -kInfinity;
    }
    if (options_.key_padding_mask) {
      const ConstTensorView& m = options_.key_padding_mask->view();
      sum += mask_bias(*options_.key_padding_mask,
                       m.rank() == 1 ? element(m, {j}) : element(m, {b, j}));
    }
    return sum;
  }

  void batch(std::size_t b, const Element& query, const Element& key, const Element& value,
             ModuleResult& r) const {
    const std::vector<double> q = heads(0, r.T_q, query), k = heads(1, T_k_, key),
                              v = heads(2, T_k_, value);
    const std::size_t group = o_.num_heads / module_.num_kv_heads();
    const std::size_t q_width = width(0), kv_width = width(1);
    std::vector<double> o(r.T_q * q_width), magnitude(r.T_q * q_width);
    for (std::size_t h = 0; h < r.H; ++h) {
      const auto columns = [&](const std::vector<double>& x, std::size_t w, std::size_t head) {
        return
            [&x, w, head, this](std::size_t t, std::size_t i) { return x[t * w + head * d_ + i]; };
      };
      ReferenceHead head;
      head.T_q = r.T_q;
      head.T_k = r.S;
      head.d_head = head.d_v = d_;
      head.q = columns(q, q_width, h);
      head.k = columns(k, kv_width, h / group);
      head.v = columns(v, kv_width, h / group);
      head.bias = [&](std::size_t t, std::size_t j) { return bias(b, h, t, j); };
      head.scale = 1.0 / std::sqrt(static_cast<double>(d_));
      head.dropout = {module_.training() ? o_.dropout : 0.0, options_.dropout_seed, b * r.H + h};
      const ReferenceResult one = reference_attention(head);
      r.weights.insert(r.weights.end(), one.p.begin(), one.p.end());
      for (std::size_t t = 0; t < r.T_q; ++t)
        for (std::size_t i = 0; i < d_; ++i) {
          o[t * q_width + h * d_ + i] = one.o[t * d_ + i];
          magnitude[t * q_width + h * d_ + i] = one.magnitude[t * d_ + i];
        }
    }
    const ConstTensorView& w = *find("out_proj.weight");
    const ConstTensorView* out_bias = find("out_proj.bias");
    for (std::size_t t = 0; t < r.T_q; ++t)
      for (std::size_t e = 0; e < r.E; ++e) {
        double sum = out_bias == nullptr ? 0 : element(*out_bias, {e});
        double size = std::abs(sum);
        for (std::size_t i = 0; i < q_width; ++i) {
          sum += element(w, {e, i}) * o[t * q_width + i];
          size += std::abs(element(w, {e, i})) * magnitude[t * q_width + i];
        }
        r.output[(b * r.T_q + t) * r.E + e] = sum;
        r.scale[b * r.T_q + t] = std::max(r.scale[b * r.T_q + t], size);
      }
  }

  const MultiheadAttention& module_;
  const MultiheadAttentionOptions& o_;
  const ForwardOptions& options_;
  std::vector<NamedView> state_;
  std::size_t T_k_ = 0, d_ = 0;
};

}  // namespace headwise::test
