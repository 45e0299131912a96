// Tensors that the command line names: read from files, written to files, summed up for a person.
#pragma once

#include <optional>
#include <string>

#include "headwise/io.h"
#include "headwise/tensor.h"
#include "nlohmann/json_fwd.hpp"

namespace headwise::cli {

// FILE or FILE:TENSOR. The file is the shortest beginning of the text, up to a colon, that exists.
struct TensorArg {
  std::string path, tensor;
  bool named = false;  // a tensor was given
};
TensorArg split_tensor_arg(const std::string& text);

// A tensor in a mapped file, or its conversion.
class InputTensor {
 public:
  // `option` is who asks, for the error. A file with several tensors needs a name.
  InputTensor(const std::string& option, const std::string& text);

  void convert_to(DType dtype);       // floating dtypes only; DTypeError names the option
  void convert_mask_to(DType dtype);  // finite numbers stay finite; a boolean mask stays as it is
  const ConstTensorView& view() const { return view_; }

 private:
  std::string option_;
  TensorFile file_;
  std::optional<Tensor> converted_;
  ConstTensorView view_;
};

// Refuses names that do not end in .npy, .npz or .safetensors: before any work is done.
void check_output_path(const std::string& option, const std::string& path);
bool holds_one_tensor(const std::string& path);  // .npy
void save_tensors(const std::string& path, std::span<const NamedView> tensors);

// Shape, dtype, smallest, largest and mean value, how many are not finite, the first few.
std::string summary(const ConstTensorView& tensor);
nlohmann::ordered_json summary_json(const ConstTensorView& tensor);

}  // namespace headwise::cli
