// Tensors in files: .safetensors, .npy and .npz. Files are mapped, not read; every length, offset
// and shape is checked against the file before it is used. Errors are FileError and name the file,
// the tensor, what was found and what was expected.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headwise/export.h"
#include "headwise/multihead_attention.h"
#include "headwise/tensor.h"

namespace headwise {

struct TensorInfo {
  std::string name;           // as in the file; use printable() to show it
  std::string dtype;          // the format's own name: "F32", "F8_E4M3", "<f4"
  std::optional<DType> type;  // empty for a dtype that headwise only lists
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;
};

class HEADWISE_API TensorFile {
 public:
  enum class Format { safetensors, npy, npz };

  static TensorFile open(const std::string& path);  // the format follows from the first bytes
  ~TensorFile();
  TensorFile(TensorFile&&) noexcept;
  TensorFile& operator=(TensorFile&&) noexcept;

  Format format() const;
  const std::string& path() const;
  const std::vector<TensorInfo>& tensors() const;              // an .npy file has one, named ""
  const TensorInfo* find(const std::string& name) const;       // nullptr: not there
  const std::map<std::string, std::string>& metadata() const;  // safetensors' __metadata__

  // The elements: mapped where the format allows it, copied where data is unaligned or deflated.
  // The view lives as long as this object. Throws FileError when the name or a usable dtype is
  // missing.
  ConstTensorView view(const std::string& name) const;

 private:
  struct State;
  explicit TensorFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Written beside the target and renamed, so that a failure leaves the old file. Any strides.
HEADWISE_API void save_safetensors(const std::string& path, std::span<const NamedView> tensors,
                                   const std::map<std::string, std::string>& metadata = {});
HEADWISE_API void save_npy(const std::string& path, const ConstTensorView& tensor);
HEADWISE_API void save_npz(const std::string& path, std::span<const NamedView> tensors);

// An attention block found in a file by its parameters' names.
struct AttentionBlock {
  enum class Form { torch_packed, torch_separate, fused, bert };
  std::string prefix;  // "encoder.layer.0.attention."; "" for a bare module
  Form form = Form::torch_packed;
  std::size_t embed_dim = 0;
  std::size_t kdim = 0, vdim = 0;
  // Rows of the query's and of the key's (and value's) projection: num_heads * head_dim and
  // num_kv_heads * head_dim. Both are embed_dim in torch's own modules.
  std::size_t query_width = 0, kv_width = 0;
  bool bias = false, bias_kv = false;
  std::vector<std::string> tensors;  // names in the file
  std::uint64_t parameter_count = 0;
  // Empty for a block that can be used; else "tensor NAME: found ..., expected ..." of the first
  // parameter that is missing or does not fit the others.
  std::string problem;
};
// Ordered by prefix, numbers in it by their value.
HEADWISE_API std::vector<AttentionBlock> find_attention_blocks(const TensorFile& file);

// For people: control, bidirectional and invalid bytes escaped, long text cut in the middle.
HEADWISE_API std::string printable(std::string_view text, std::size_t max_letters = 80);

}  // namespace headwise
