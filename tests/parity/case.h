// One line of a parity file's metadata and the tensors that go with it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "headwise/attention.h"
#include "headwise/io.h"
#include "headwise/tensor.h"

namespace headwise::parity {

// Memory in the layout that the file asks for. The gaps hold NaN, so that reading one shows.
struct Placed {
  std::unique_ptr<std::byte[]> memory;
  ConstTensorView view;
};

class Case {
 public:
  Case(const TensorFile& file, const std::string& id, const std::string& options);

  const std::string& id() const { return id_; }
  const std::string& line() const { return line_; }
  std::string text(const std::string& option, const std::string& otherwise = {}) const;
  bool flag(const std::string& option) const { return text(option, "0") == "1"; }
  std::optional<std::size_t> size(const std::string& option) const;
  std::optional<double> real(const std::string& option) const;
  DType dtype() const;

  bool has(const std::string& tensor) const { return file_->find(id_ + "/" + tensor) != nullptr; }
  ConstTensorView tensor(const std::string& name) const { return file_->view(id_ + "/" + name); }
  Placed placed(const std::string& name) const;
  // "state.x" as x, in the file's order.
  std::vector<NamedView> state() const;

 private:
  const TensorFile* file_;
  std::string id_, line_;
  std::map<std::string, std::string> options_;
};

// A mask of the kind that option `name` says.
Mask mask_of(const Case& c, const std::string& name, const ConstTensorView& view);

}  // namespace headwise::parity
