// Multi-head attention with its projections (Vaswani et al. 2017, section 3.2.2):
//   MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O,
//   head_i = softmax(Q W_i^Q (K W_i^K)^T / sqrt(d_head)) V W_i^V
// with the options, parameter names and shapes of torch.nn.MultiheadAttention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headwise/attention.h"
#include "headwise/export.h"
#include "headwise/module_gradients.h"
#include "headwise/random.h"
#include "headwise/tensor.h"

namespace headwise {

struct MultiheadAttentionOptions {
  std::size_t embed_dim = 0;  // d_model; has to be divisible by num_heads unless head_dim is given
  std::size_t num_heads = 0;
  double dropout = 0.0;        // on the weights, in training only
  bool bias = true;            // in_proj_bias and out_proj.bias
  bool add_bias_kv = false;    // one learned key and value after the projected ones, always visible
  bool add_zero_attn = false;  // one key and value of zeros at the very end, always visible
  std::optional<std::size_t> kdim{};  // width of key, default embed_dim
  std::optional<std::size_t> vdim{};  // width of value, default embed_dim
  bool batch_first = false;           // false: (T, B, embed_dim); true: (B, T, embed_dim)
  DType dtype = DType::f32;           // of parameters, inputs and outputs: f32, f64, bf16 or f16
  // Beyond torch's:
  std::optional<std::size_t> num_kv_heads{};  // divides num_heads; default num_heads
  std::optional<std::size_t> head_dim{};      // default embed_dim / num_heads
  // Of the projections' tables; default dtype. bf16 beside f32: tables are rounded to bf16 and take
  // half the memory and half the reading, which is the time of a call with few rows; biases,
  // inputs, outputs and all sums stay f32.
  std::optional<DType> weight_dtype{};
  // How the projections are named and stored. torch: in_proj_weight (or q_proj_weight,
  // k_proj_weight, v_proj_weight) and out_proj.weight; fused: the bias-free module's
  // qkv_proj.weight, whose rows are q, k, v, and out_proj.weight; `bias` counts as false.
  enum class Names : std::uint8_t { torch, fused } names = Names::torch;
};

struct ForwardOptions {
  // torch's meaning is Mask::ignore, or Mask::bias for a floating mask.
  std::optional<Mask> key_padding_mask{};  // (B, T_k), or (T_k) for unbatched input
  std::optional<Mask>
      attn_mask{};  // (T_q, T_k), (B * num_heads, T_q, T_k), or (B, 1 or num_heads, T_q, T_k)
  bool need_weights = true;
  bool average_attn_weights = true;
  // Without attn_mask: causal, top-left. With one: a hint, and the mask is what counts.
  bool is_causal = false;
  bool strict = false;             // a hint that contradicts attn_mask is an error
  std::uint64_t dropout_seed = 0;  // in training: the same seed drops the same weights
};

struct ForwardResult {
  Tensor output;  // query's layout: (T_q, B, embed_dim), (B, T_q, embed_dim) or (T_q, embed_dim)
  std::optional<Tensor>
      weights;  // batch-major: (B, T_q, S) or (B, num_heads, T_q, S); unbatched without B
};              // S = T_k + add_bias_kv + add_zero_attn

class HEADWISE_API MultiheadAttention {
 public:
  // Draws the parameters from `generator` in torch's order, so that after manual_seed(n) they are
  // torch's.
  explicit MultiheadAttention(const MultiheadAttentionOptions& options,
                              Generator& generator = default_generator());
  ~MultiheadAttention();
  MultiheadAttention(MultiheadAttention&&) noexcept;  // one moved from may only be assigned to
  MultiheadAttention& operator=(MultiheadAttention&&) noexcept;

  const MultiheadAttentionOptions& options() const;
  std::size_t head_dim() const;
  std::size_t num_kv_heads() const;

  // (T_q, B, embed_dim), (T_k, B, kdim), (T_k, B, vdim), with B first when batch_first, or without
  // B. Safe to call from several threads at once on one module.
  ForwardResult forward(const ConstTensorView& query, const ConstTensorView& key,
                        const ConstTensorView& value, const ForwardOptions& options = {}) const;
  // The same into the caller's memory, of the shapes and dtype of ForwardResult and any strides, so
  // that a call allocates nothing once a thread has its working memory. Weights are written when
  // `weights` has data, whatever need_weights says. Outputs share no element with an input.
  void forward(const ConstTensorView& query, const ConstTensorView& key,
               const ConstTensorView& value, const ForwardOptions& options,
               const TensorView& output, const TensorView& weights = {}) const;

  // The same, and `saved` takes what backward needs. bf16 is computed in f32 here, on every CPU.
  ForwardResult forward(const ConstTensorView& query, const ConstTensorView& key,
                        const ConstTensorView& value, const ForwardOptions& options,
                        SavedForward& saved) const;
  // Gradients of that call, which had the parameters that the module has now. Sums are kept in f32
  // (f64 in an f64 module); those over all time steps are one chain in ascending order. The same
  // bits for any number of threads. Throws before anything is written; `saved` may be used again.
  void backward(const SavedForward& saved, const OutputGradients& d_result,
                ParameterGradients& parameters, const InputGradients& inputs = {}) const;

  void train(bool mode = true);  // dropout on; a new module is in training mode, as torch's
  void eval() { train(false); }
  bool training() const;

  // Names, order and shapes of torch's state_dict. The views end when a parameter is changed.
  std::vector<NamedView> parameters() const;
  std::size_t parameter_count() const;
  // Replaces all parameters: every name once, with the right shape, any floating dtype (converted).
  void load_state_dict(std::span<const NamedView> state);
  void set_parameter(const std::string& name, const ConstTensorView& value);
  // Lets `change` write into the parameters, in their dtypes and order, as an optimizer does. What
  // it wrote counts even if it throws.
  void update(const std::function<void(std::span<const NamedTensorView>)>& change);

  // One block of a .safetensors file whose names begin with `prefix` ("" for a file that holds one
  // module); torch's packed and separate names, qkv_proj, or BERT's query/key/value and
  // output.dense.
  static MultiheadAttention load(const std::string& path, std::size_t num_heads,
                                 const std::string& prefix = "");
  void save(const std::string& path) const;

 private:
  friend class ParameterGradients;
  struct State;
  std::unique_ptr<ParameterGradients::State> new_gradients() const;
  explicit MultiheadAttention(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headwise
