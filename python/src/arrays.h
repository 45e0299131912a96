// Arrays of Python: views of those that come in, and results that go out as the same kind.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>

#include "headwise/attention.h"
#include "headwise/dtype.h"
#include "headwise/tensor.h"

namespace headwise::python {

namespace nb = nanobind;

// An argument, seen where it lies: a NumPy array, or anything with DLPack on the CPU. Nothing is
// copied; the array is kept alive. Made and destroyed with the GIL held, read without it.
class Input {
 public:
  enum class Gradients : bool { refused, kept_elsewhere };  // who sees to those of a torch tensor

  Input(const char* name, nb::handle array, Gradients gradients = Gradients::refused);
  const ConstTensorView& view() const { return view_; }

 private:
  nb::ndarray<nb::ro> array_;
  ConstTensorView view_;
};

// Query, key and value; an array that is given twice is looked at once.
class Inputs {
 public:
  Inputs(nb::handle query, nb::handle key, nb::handle value) : q_("query", query) {
    if (!key.is(query)) k_.emplace("key", key);
    if (!value.is(key)) v_.emplace("value", value);
  }
  const ConstTensorView& q() const { return q_.view(); }
  const ConstTensorView& k() const { return k_ ? k_->view() : q(); }
  const ConstTensorView& v() const { return v_ ? v_->view() : k(); }

 private:
  Input q_;
  std::optional<Input> k_, v_;
};

// A mask as torch gives it: a bare boolean means what `boolean` says, a floating one is added.
Mask mask_of(const char* name, const Input& input, Mask::Kind boolean);

// The tensor as the same kind of array as `like`; it takes over the memory.
nb::object array_like(nb::handle like, Tensor&& tensor);
nb::object numpy_array(Tensor&& tensor);  // bf16 needs the package ml_dtypes

// "float32", numpy.float32, numpy.dtype("float32") or torch.float32.
DType dtype_argument(nb::handle dtype);
const char* dtype_name(DType dtype);  // "float32", of the four floating types

}  // namespace headwise::python
