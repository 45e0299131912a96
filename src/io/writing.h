// What the writers of all formats share.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "headwise/io.h"
#include "headwise/tensor.h"
#include "io/output_file.h"
#include "io/refusal.h"

namespace headwise::io {

std::string argument_name(const NamedView& tensor);  // "tensors["NAME"]", for messages

// Views that can be walked, under names that are UTF-8 and given once; an ArgumentError otherwise.
void check_tensors(std::span<const NamedView> tensors);

std::size_t bytes_of(const ConstTensorView& view);  // of a view that was checked

// A view's elements in row-major order: where they lie, or copied when they lie otherwise.
class Elements {
 public:
  explicit Elements(const ConstTensorView& view);
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  Tensor copy_;
  std::span<const std::byte> bytes_;
};

// Calls `write` on a file that takes the target's name when all of it is on the disk.
template <typename F>
void write_file(const std::string& path, F&& write) {
  try {
    OutputFile out(path);
    write(out);
    out.commit();
  } catch (const Refusal& refusal) {
    throw file_error(path, refusal);
  }
}

}  // namespace headwise::io
