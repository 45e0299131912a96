// A whole file of any format: opened, listed, every tensor's elements read, attention blocks found.
#include <sys/mman.h>
#include <unistd.h>

#include "headwise/error.h"
#include "support.h"

using namespace headwise;

namespace {

std::string with_bytes(const std::uint8_t* data, std::size_t size) {
  static const int kFile = memfd_create("fuzz", 0);
  fuzz::require(kFile >= 0 && ftruncate(kFile, static_cast<off_t>(size)) == 0);
  fuzz::require(pwrite(kFile, data, size, 0) == static_cast<ssize_t>(size));
  return "/proc/self/fd/" + std::to_string(kFile);
}

void look_at(const TensorFile& file) {
  for (const AttentionBlock& block : find_attention_blocks(file))
    fuzz::check_message(block.problem);
  for (const TensorInfo& tensor : file.tensors()) {
    fuzz::require(file.find(tensor.name) != nullptr);
    try {
      const ConstTensorView view = file.view(tensor.name);
      const Tensor copy = Tensor::copy_of(view);  // reads every element
      fuzz::require(copy.size() * size_of(view.dtype) == tensor.bytes);
    } catch (const FileError& error) {
      fuzz::check_message(error.what());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    look_at(TensorFile::open(with_bytes(data, size)));
  } catch (const FileError& error) {
    fuzz::check_message(error.what());
  }
  return 0;
}
