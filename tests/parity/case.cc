#include "parity/case.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>

namespace headwise::parity {
namespace {

std::vector<int> numbers(const std::string& text) {
  std::vector<int> found;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) found.push_back(std::stoi(item));
  return found;
}

// order/steps/pads, as drawing.py's layout() describes them.
struct Layout {
  std::vector<int> order, steps, pads;

  Layout(const std::string& text, std::size_t rank) {
    std::istringstream in(text);
    for (auto* part : {&order, &steps, &pads}) {
      std::string item;
      std::getline(in, item, '/');
      *part = numbers(item);
      if (part->size() != rank) throw std::runtime_error("layout " + text + " for another rank");
    }
  }
};

}  // namespace

Case::Case(const TensorFile& file, const std::string& id, const std::string& options)
    : file_(&file), id_(id), line_(options) {
  std::istringstream in(options);
  for (std::string word; in >> word;) {
    const std::size_t equals = word.find('=');
    options_[word.substr(0, equals)] = word.substr(equals + 1);
  }
}

std::string Case::text(const std::string& option, const std::string& otherwise) const {
  const auto found = options_.find(option);
  return found == options_.end() ? otherwise : found->second;
}

std::optional<std::size_t> Case::size(const std::string& option) const {
  const auto found = options_.find(option);
  if (found == options_.end()) return std::nullopt;
  return std::stoull(found->second);
}

std::optional<double> Case::real(const std::string& option) const {
  const auto found = options_.find(option);
  if (found == options_.end()) return std::nullopt;
  return std::strtod(found->second.c_str(), nullptr);
}

DType Case::dtype() const {
  for (DType d : {DType::f32, DType::f64, DType::bf16, DType::f16})
    if (name_of(d) == text("dtype")) return d;
  throw std::runtime_error("case " + id_ + " has dtype " + text("dtype"));
}

Placed Case::placed(const std::string& name) const {
  const ConstTensorView from = tensor(name);
  const std::string how = text(name + "_layout");
  if (how.empty()) return {nullptr, from};
  const Layout layout(how, from.rank());
  Strides strides(from.strides);
  std::ptrdiff_t extent = 1, first = 0;  // of the dims placed so far; where element 0 lies
  for (std::size_t i = from.rank(); i-- > 0;) {
    const auto d = static_cast<std::size_t>(layout.order[i]);
    const std::ptrdiff_t step = layout.steps[d], n = static_cast<std::ptrdiff_t>(from.shape[d]);
    strides[d] = extent * step;
    if (step < 0 && n > 0) first -= (n - 1) * strides[d];
    extent *= std::max(n * std::abs(step), std::ptrdiff_t{step == 0}) + layout.pads[d];
  }
  const auto width = static_cast<std::ptrdiff_t>(size_of(from.dtype));
  const auto bytes = static_cast<std::size_t>(extent * width);
  Placed result{std::make_unique<std::byte[]>(bytes), {}};
  std::memset(result.memory.get(), 0xff, bytes);  // NaN in every floating dtype
  result.view = {result.memory.get() + first * width, from.dtype, from.shape, strides};
  const auto* element = static_cast<const std::byte*>(from.data);
  DimVector<std::size_t> index(from.shape);
  for (std::size_t& i : index) i = 0;
  for (std::size_t left = element_count(from.shape); left > 0; --left, element += width) {
    std::ptrdiff_t offset = first;
    for (std::size_t i = 0; i < index.size(); ++i)
      offset += static_cast<std::ptrdiff_t>(index[i]) * strides[i];
    std::memcpy(result.memory.get() + offset * width, element, static_cast<std::size_t>(width));
    for (std::size_t i = index.size(); i-- > 0;) {
      if (++index[i] < from.shape[i]) break;
      index[i] = 0;
    }
  }
  return result;
}

std::vector<NamedView> Case::state() const {
  std::vector<NamedView> found;
  const std::string prefix = id_ + "/state.";
  // In torch's order, which a file does not keep.
  for (const char* name :
       {"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "qkv_proj.weight",
        "in_proj_bias", "bias_k", "bias_v", "out_proj.weight", "out_proj.bias"})
    if (file_->find(prefix + name) != nullptr) found.push_back({name, file_->view(prefix + name)});
  return found;
}

Mask mask_of(const Case& c, const std::string& name, const ConstTensorView& view) {
  const std::string kind = c.text(name);
  if (kind == "keep") return Mask::keep(view);
  if (kind == "ignore") return Mask::ignore(view);
  return Mask::bias(view);
}

}  // namespace headwise::parity
