// Writers of safetensors and .npy.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "core/check.h"
#include "headwise/io.h"
#include "io/npy.h"
#include "io/output_file.h"
#include "io/safetensors.h"
#include "io/utf8.h"
#include "io/writing.h"
#include "nlohmann/json.hpp"

namespace headwise {
namespace {

using io::argument_name;
using io::Elements;
using io::OutputFile;

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (const std::size_t n : shape) text += (text.size() > 1 ? "," : "") + std::to_string(n);
  return text + "]";
}

std::string metadata_text(const std::map<std::string, std::string>& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata) {
    if (io::find_invalid_utf8(key) || io::find_invalid_utf8(value))
      core::throw_argument("metadata[\"" + printable(key) + "\"]", "text that is not UTF-8",
                           "UTF-8");
    text += (text.empty() ? "" : ",") + quoted(key) + ":" + quoted(value);
  }
  return text.empty() ? text : "\"__metadata__\":{" + text + "}";
}

// The header with its length, padded so that the data begins at a multiple of 64 bytes.
std::string safetensors_header(std::span<const NamedView> tensors,
                               std::span<const std::size_t> order,
                               const std::map<std::string, std::string>& metadata) {
  std::string text = metadata_text(metadata);
  std::uint64_t begin = 0;
  for (const std::size_t i : order) {
    const NamedView& tensor = tensors[i];
    const std::uint64_t end = begin + io::bytes_of(tensor.view);
    if (!text.empty()) text += ",";
    text += quoted(tensor.name) + ":{\"dtype\":\"" +
            std::string(io::safetensors::name_of(tensor.view.dtype)) +
            "\",\"shape\":" + shape_text(tensor.view.shape) + ",\"data_offsets\":[" +
            std::to_string(begin) + "," + std::to_string(end) + "]}";
    begin = end;
  }
  text = "{" + text + "}";
  constexpr std::size_t kAlignment = 64;
  while ((io::safetensors::kLengthBytes + text.size()) % kAlignment != 0) text += ' ';
  if (text.size() > io::safetensors::kMaxHeader)
    core::throw_argument("tensors", "a header of " + std::to_string(text.size()) + " bytes",
                         "at most " + std::to_string(io::safetensors::kMaxHeader));
  std::string length;
  for (unsigned shift = 0; shift < 64; shift += 8)
    length += static_cast<char>((text.size() >> shift) & 0xffu);
  return length + text;
}

}  // namespace

void save_safetensors(const std::string& path, std::span<const NamedView> tensors,
                      const std::map<std::string, std::string>& metadata) {
  io::check_tensors(tensors);
  for (const NamedView& tensor : tensors)
    if (tensor.name == "__metadata__")
      core::throw_argument(argument_name(tensor), "the name of the metadata", "another name");
  // Wide elements first, so that each begins at a multiple of its size.
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return size_of(tensors[a].view.dtype) > size_of(tensors[b].view.dtype);
  });
  const std::string header = safetensors_header(tensors, order, metadata);
  io::write_file(path, [&](OutputFile& out) {
    out.write(header);
    for (const std::size_t i : order) out.write(Elements(tensors[i].view).bytes());
  });
}

void save_npy(const std::string& path, const ConstTensorView& tensor) {
  core::check_view("tensor", tensor);
  const std::string header =
      io::npy::write_header(tensor.dtype, {tensor.shape.begin(), tensor.shape.size()});
  io::write_file(path, [&](OutputFile& out) {
    out.write(header);
    out.write(Elements(tensor).bytes());
  });
}

}  // namespace headwise
