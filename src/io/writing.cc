#include "io/writing.h"

#include <set>
#include <string_view>

#include "core/check.h"
#include "io/utf8.h"

namespace headwise::io {
namespace {

bool is_contiguous(const ConstTensorView& view) {
  const Strides row_major = contiguous_strides(view.shape);
  for (std::size_t i = 0; i < view.rank(); ++i)
    if (view.shape[i] != 1 && view.strides[i] != row_major[i]) return false;
  return true;
}

}  // namespace

std::string argument_name(const NamedView& tensor) {
  return "tensors[\"" + printable(tensor.name) + "\"]";
}

void check_tensors(std::span<const NamedView> tensors) {
  std::set<std::string_view> names;
  for (const NamedView& tensor : tensors) {
    core::check_view(argument_name(tensor), tensor.view);
    if (!names.insert(tensor.name).second)
      core::throw_argument(argument_name(tensor), "this name twice", "each name once");
    if (find_invalid_utf8(tensor.name))
      core::throw_argument(argument_name(tensor), "a name that is not UTF-8", "UTF-8");
  }
}

std::size_t bytes_of(const ConstTensorView& view) {
  return element_count(view.shape) * size_of(view.dtype);  // check_view: it fits
}

Elements::Elements(const ConstTensorView& view) {
  const std::size_t bytes = bytes_of(view);
  if (bytes == 0) return;
  if (!is_contiguous(view)) copy_ = Tensor::copy_of(view);
  const void* data = is_contiguous(view) ? view.data : copy_.view().data;
  bytes_ = {static_cast<const std::byte*>(data), bytes};
}

}  // namespace headwise::io
