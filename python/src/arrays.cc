#include "arrays.h"

#include <nanobind/stl/string.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "headwise/error.h"

namespace headwise::python {
namespace {

using Code = nb::dlpack::dtype_code;

struct KnownType {
  DType dtype;
  Code code;
  std::uint8_t bits;
  const char* name;  // NumPy's and torch's
};

constexpr KnownType kTypes[] = {
    {DType::f32, Code::Float, 32, "float32"},    {DType::f64, Code::Float, 64, "float64"},
    {DType::bf16, Code::Bfloat, 16, "bfloat16"}, {DType::f16, Code::Float, 16, "float16"},
    {DType::boolean, Code::Bool, 8, "bool"},     {DType::u8, Code::UInt, 8, "uint8"},
    {DType::i8, Code::Int, 8, "int8"},           {DType::u16, Code::UInt, 16, "uint16"},
    {DType::i16, Code::Int, 16, "int16"},        {DType::u32, Code::UInt, 32, "uint32"},
    {DType::i32, Code::Int, 32, "int32"},        {DType::u64, Code::UInt, 64, "uint64"},
    {DType::i64, Code::Int, 64, "int64"},
};
constexpr std::size_t kFloating = 4;  // the first of them
constexpr const char* kExpected = "float32, float64, bfloat16 or float16";

const KnownType& type_of(DType dtype) {
  std::size_t i = 0;
  while (kTypes[i].dtype != dtype) ++i;
  return kTypes[i];
}

std::string text(const nb::object& object) { return nb::cast<std::string>(nb::str(object)); }

DType dtype_of(const char* name, nb::dlpack::dtype found) {
  for (const KnownType& type : kTypes)
    if (static_cast<std::uint8_t>(type.code) == found.code && type.bits == found.bits &&
        found.lanes == 1)
      return type.dtype;
  throw DTypeError(name,
                   "an element type of " + std::to_string(found.bits) +
                       " bits with the DLPack code " + std::to_string(found.code),
                   std::string("bool, ") + kExpected);
}

// Kept for the life of the process: modules outlive what they would be released by.
PyObject* numpy_array_type() {
  static PyObject* const type =
      nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr();
  return type;
}

bool is_numpy(nb::handle array) {
  return PyObject_IsInstance(array.ptr(), numpy_array_type()) == 1;
}

// Borrowed, or null while nobody has imported torch: this never does.
PyObject* torch_module() {
  static PyObject* const modules =
      nb::object(nb::module_::import_("sys").attr("modules")).release().ptr();
  return PyDict_GetItemString(modules, "torch");
}

bool is_torch(nb::handle array) {
  const nb::handle torch = torch_module();
  return torch.is_valid() && nb::hasattr(torch, "Tensor") &&
         PyObject_IsInstance(array.ptr(), nb::object(torch.attr("Tensor")).ptr()) == 1;
}

// torch's own functions take a capsule, in a fraction of the time of __dlpack__() and of its
// checks.
struct TorchDlpack {
  nb::object to_dlpack, from_dlpack;
};
const TorchDlpack& torch_dlpack() {
  static const auto* const functions = [] {
    const nb::module_ dlpack = nb::module_::import_("torch.utils.dlpack");
    return new TorchDlpack{dlpack.attr("to_dlpack"), dlpack.attr("from_dlpack")};
  }();
  return *functions;
}

// DLPack knows no gradients: a tensor whose history torch keeps would lose it unnoticed.
nb::object torch_capsule(const char* name, nb::handle tensor, Input::Gradients gradients) {
  if (gradients == Input::Gradients::refused && nb::cast<bool>(tensor.attr("requires_grad")) &&
      nb::cast<bool>(nb::handle(torch_module()).attr("is_grad_enabled")()))
    throw ArgumentError(name, "a tensor that requires gradients",
                        "one that does not: tensor.detach(), or a call under torch.no_grad()");
  try {
    return torch_dlpack().to_dlpack(tensor);
  } catch (const nb::python_error&) {  // lazy, sparse, or on a device without memory
    return nb::none();
  }
}

// Why an object could not be seen as an array.
[[noreturn]] void refuse(const char* name, nb::handle array) {
  std::string found = text(nb::handle(array.type()).attr("__name__"));
  if (nb::hasattr(array, "dtype")) found += " of " + text(array.attr("dtype"));
  if (is_numpy(array))
    found += " with strides of " + text(array.attr("strides")) + " bytes";
  else if (nb::hasattr(array, "device"))
    found += " on " + text(array.attr("device"));
  throw DTypeError(
      name, found,
      "a NumPy array, or one with DLPack: aligned, in the CPU's memory and byte order");
}

// NumPy has no bf16 of its own: ml_dtypes' arrays are read, and made, as the bits they hold.
bool is_numpy_bfloat16(nb::handle array) {
  return is_numpy(array) && text(array.attr("dtype")) == "bfloat16";
}

// What owns its memory on the Python side.
nb::ndarray<> to_ndarray(Tensor&& tensor, const KnownType& type) {
  const Shape shape = tensor.shape();
  std::array<std::size_t, kMaxRank> dims{};
  for (std::size_t i = 0; i < shape.size(); ++i) dims[i] = shape[i];
  auto* owned = new Tensor(std::move(tensor));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Tensor*>(p); });
  return {owned->view().data,
          shape.size(),
          dims.data(),
          owner,
          nullptr,
          {static_cast<std::uint8_t>(type.code), type.bits, 1}};
}

}  // namespace

Input::Input(const char* name, nb::handle array, Gradients gradients) {
  bool bits = false;
  if (!is_numpy(array) && is_torch(array)) {
    if (!nb::try_cast(torch_capsule(name, array, gradients), array_)) refuse(name, array);
  } else if (!nb::try_cast(array, array_)) {
    bits = is_numpy_bfloat16(array);
    if (!bits || !nb::try_cast(array.attr("view")("uint16"), array_)) refuse(name, array);
  }
  if (array_.device_type() != nb::device::cpu::value) refuse(name, array);
  view_.data = array_.data();
  view_.dtype = bits ? DType::bf16 : dtype_of(name, array_.dtype());
  for (std::size_t i = 0; i < array_.ndim(); ++i) {
    view_.shape.push_back(array_.shape(i));
    view_.strides.push_back(static_cast<std::ptrdiff_t>(array_.stride(i)));
  }
}

Mask mask_of(const char* name, const Input& input, Mask::Kind boolean) {
  const ConstTensorView& view = input.view();
  if (view.dtype == DType::boolean)
    return boolean == Mask::Kind::keep ? Mask::keep(view) : Mask::ignore(view);
  if (!is_floating(view.dtype))
    throw DTypeError(name, std::string("dtype ") + type_of(view.dtype).name,
                     "bool, or a floating dtype");
  return Mask::bias(view);
}

nb::object numpy_array(Tensor&& tensor) {
  const DType dtype = tensor.dtype();
  if (dtype != DType::bf16)
    return nb::cast(nb::ndarray<nb::numpy>(to_ndarray(std::move(tensor), type_of(dtype))));
  nb::object bfloat16 = nb::module_::import_("ml_dtypes").attr("bfloat16");
  const nb::ndarray<nb::numpy> bits(to_ndarray(std::move(tensor), type_of(DType::u16)));
  return nb::cast(bits).attr("view")(bfloat16);
}

nb::object array_like(nb::handle like, Tensor&& tensor) {
  if (is_numpy(like)) return numpy_array(std::move(tensor));
  const KnownType& type = type_of(tensor.dtype());
  if (is_torch(like))
    return torch_dlpack().from_dlpack(nb::cast(to_ndarray(std::move(tensor), type)));
  if (!nb::hasattr(like, "__array_namespace__")) return numpy_array(std::move(tensor));
  const nb::ndarray<nb::array_api> array(to_ndarray(std::move(tensor), type));
  return like.attr("__array_namespace__")().attr("from_dlpack")(nb::cast(array));
}

DType dtype_argument(nb::handle dtype) {
  const bool is_class = nb::isinstance<nb::type_object>(dtype);
  std::string name = text(is_class ? dtype.attr("__name__") : nb::borrow(dtype));
  if (name.starts_with("torch.")) name.erase(0, 6);
  for (std::size_t i = 0; i < kFloating; ++i)
    if (name == kTypes[i].name) return kTypes[i].dtype;
  throw DTypeError("dtype", name, kExpected);
}

const char* dtype_name(DType dtype) { return type_of(dtype).name; }

}  // namespace headwise::python
