// The parameters of a MultiheadAttention: names, shapes, torch's initial draws.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headwise/multihead_attention.h"
#include "headwise/tensor.h"

namespace headwise::module {

// What the options mean, checked.
struct Sizes {
  std::size_t embed_dim = 0, kdim = 0, vdim = 0;
  std::size_t n_heads = 0, n_kv_heads = 0, d_head = 0;
  std::size_t q_width = 0;   // n_heads * d_head
  std::size_t kv_width = 0;  // n_kv_heads * d_head
  bool packed = true;        // one table for q, k and v: kdim and vdim are embed_dim
};

// Throws ArgumentError or DTypeError for options that no module can have.
Sizes check_options(const MultiheadAttentionOptions& options);

class Parameters {
 public:
  // Not initialised.
  Parameters(const MultiheadAttentionOptions& options, const Sizes& sizes);

  // Draws in torch's order: first the output projection, as its Linear layer does in its own
  // constructor.
  void draw(Generator& generator);

  std::size_t size() const { return names_.size(); }
  const std::string& name(std::size_t i) const { return names_[i]; }
  ConstTensorView view(std::size_t i) const { return values_[i]->view(); }
  bool has(const std::string& name) const;
  ConstTensorView view(const std::string& name) const;  // no data when there is none

  // Converts `value` into the parameter. Throws ArgumentError naming it, before anything changes.
  // Copies of this object share tables, and never see one another's changes.
  void set(const std::string& name, const ConstTensorView& value);
  // Every parameter once. All or nothing.
  void set_all(std::span<const NamedView> state);

  // For change in place.
  std::vector<NamedTensorView> writable();

  // The parameter that holds the weights, or the bias, of the projection to q, k, v or of the
  // output (0, 1, 2, 3); "" when there is none.
  std::string weight_name(std::size_t i) const;
  std::string bias_name(std::size_t i) const;

  // The rows of W and b that make q, k and v (0, 1, 2), whatever the names; no data: no bias.
  struct Projection {
    ConstTensorView weight, bias;
  };
  Projection input_projection(std::size_t i) const;
  Projection output_projection() const;

 private:
  void add(std::string name, Shape shape);
  std::size_t index_of(const std::string& name) const;  // size() when missing
  std::shared_ptr<Tensor> converted_value(std::size_t i, const ConstTensorView& value) const;
  void draw_linear(Generator& generator, const std::string& weight, const std::string& bias);

  DType dtype_, table_dtype_;
  Sizes sizes_;
  bool fused_ = false;
  std::vector<std::string> names_;
  std::vector<std::shared_ptr<Tensor>> values_;
};

}  // namespace headwise::module
