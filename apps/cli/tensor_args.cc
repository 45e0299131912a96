#include "cli/tensor_args.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "cli/common.h"
#include "core/check.h"
#include "core/convert.h"
#include "headwise/error.h"
#include "nlohmann/json.hpp"

namespace headwise::cli {
namespace {

constexpr std::size_t kFirstValues = 8;

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::string only_tensor(const std::string& option, const TensorFile& file) {
  if (file.tensors().size() == 1) return file.tensors().front().name;
  throw FileError(option + ": found " + std::to_string(file.tensors().size()) + " tensors in " +
                  printable(file.path()) + ", expected one, or its name as FILE:TENSOR");
}

struct Statistics {
  std::size_t n = 0, n_nan = 0, n_infinite = 0;
  double smallest = std::numeric_limits<double>::quiet_NaN();  // of the finite values
  double largest = smallest, mean = smallest;
  std::vector<double> first;
};

Statistics statistics_of(const ConstTensorView& tensor) {
  const Tensor values = core::converted(tensor, DType::f64);
  Statistics s;
  double sum = 0;
  for (double value : values.values<double>()) {
    if (s.n++ < kFirstValues) s.first.push_back(value);
    s.n_nan += std::isnan(value);
    s.n_infinite += std::isinf(value);
    if (!std::isfinite(value)) continue;
    s.smallest = std::fmin(s.smallest, value);  // fmin and fmax skip NaN
    s.largest = std::fmax(s.largest, value);
    sum += value;
  }
  const std::size_t n_finite = s.n - s.n_nan - s.n_infinite;
  if (n_finite > 0) s.mean = sum / static_cast<double>(n_finite);
  return s;
}

// How many digits tell the values of a dtype apart.
const char* number_format(DType dtype) {
  if (dtype == DType::f64) return "%.17g";
  return dtype == DType::f32 ? "%.9g" : "%.5g";
}

}  // namespace

TensorArg split_tensor_arg(const std::string& text) {
  if (exists(text)) return {text, "", false};
  for (std::size_t colon = text.find(':'); colon != std::string::npos;
       colon = text.find(':', colon + 1))
    if (exists(text.substr(0, colon))) return {text.substr(0, colon), text.substr(colon + 1), true};
  return {text, "", false};  // opening it says what is wrong
}

InputTensor::InputTensor(const std::string& option, const std::string& text)
    : option_(option), file_(TensorFile::open(split_tensor_arg(text).path)) {
  const TensorArg arg = split_tensor_arg(text);
  view_ = file_.view(arg.named ? arg.tensor : only_tensor(option, file_));
}

void InputTensor::convert_to(DType dtype) {
  if (!is_floating(view_.dtype)) core::throw_dtype(option_, view_.dtype, "f32, f64, bf16 or f16");
  if (view_.dtype == dtype) return;
  converted_ = core::converted(view_, dtype);
  view_ = converted_->view();
}

void InputTensor::convert_mask_to(DType dtype) {
  if (view_.dtype == DType::boolean) return;
  if (!is_floating(view_.dtype))
    core::throw_dtype(option_, view_.dtype, "bool, f32, f64, bf16 or f16");
  // f32 is allowed beside the 16-bit types, and holds more.
  const DType target = dtype == DType::f64 ? DType::f64 : DType::f32;
  const bool narrows = view_.dtype == DType::f64 && target == DType::f32;
  if (!narrows) return convert_to(target);
  // A double's lowest value means "almost nothing", not "hidden" as -inf does.
  Tensor wide = Tensor::copy_of(view_);
  constexpr double kMost = std::numeric_limits<float>::max();
  double* values = wide.data<double>();
  for (std::size_t i = 0; i < wide.size(); ++i)
    if (std::isfinite(values[i])) values[i] = std::clamp(values[i], -kMost, kMost);
  converted_ = core::converted(wide, target);
  view_ = converted_->view();
}

void check_output_path(const std::string& option, const std::string& path) {
  for (const char* ending : {".npy", ".npz", ".safetensors"})
    if (path.size() > std::string_view(ending).size() && path.ends_with(ending)) return;
  throw UsageError(option + ": found \"" + path +
                   "\", expected a name ending in .npy, .npz or .safetensors");
}

bool holds_one_tensor(const std::string& path) { return path.ends_with(".npy"); }

void save_tensors(const std::string& path, std::span<const NamedView> tensors) {
  if (path.ends_with(".npy")) return save_npy(path, tensors.front().view);
  if (path.ends_with(".npz")) return save_npz(path, tensors);
  save_safetensors(path, tensors);
}

std::string summary(const ConstTensorView& tensor) {
  const Statistics s = statistics_of(tensor);
  std::string text = to_string(tensor.shape) + " " + std::string(name_of(tensor.dtype));
  if (s.n == 0) return text + ", empty";
  text += ", from " + format(s.smallest) + " to " + format(s.largest) + ", mean " + format(s.mean);
  if (s.n_nan > 0) text += ", " + grouped(s.n_nan) + " NaN";
  if (s.n_infinite > 0) text += ", " + grouped(s.n_infinite) + " infinite";
  text += "\n    ";
  for (double value : s.first) text += " " + format(value, number_format(tensor.dtype));
  return text + (s.n > s.first.size() ? " ..." : "");
}

nlohmann::ordered_json summary_json(const ConstTensorView& tensor) {
  const Statistics s = statistics_of(tensor);
  return {{"shape", std::vector<std::size_t>(tensor.shape.begin(), tensor.shape.end())},
          {"dtype", name_of(tensor.dtype)},
          {"min", s.smallest},
          {"max", s.largest},
          {"mean", s.mean},
          {"nan_count", s.n_nan},
          {"infinite_count", s.n_infinite},
          {"first", s.first}};
}

}  // namespace headwise::cli
