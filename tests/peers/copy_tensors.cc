// For files.py: reads files as headwise does.
//   copy_tensors IN OUT          writes IN's tensors in the format of OUT's suffix
//   copy_tensors --check IN...   says of each file whether it is taken: one line "taken" or the
//   error
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "headwise/error.h"
#include "headwise/io.h"

namespace {

using namespace headwise;

void copy(const std::string& in, const std::string& out) {
  const TensorFile file = TensorFile::open(in);
  std::vector<NamedView> tensors;
  for (const TensorInfo& tensor : file.tensors())
    tensors.push_back({tensor.name, file.view(tensor.name)});
  if (out.ends_with(".npz"))
    save_npz(out, tensors);
  else if (out.ends_with(".npy"))
    save_npy(out, tensors.at(0).view);
  else
    save_safetensors(out, tensors, file.metadata());
}

void check(const char* path) {
  try {
    const TensorFile file = TensorFile::open(path);
    for (const TensorInfo& tensor : file.tensors())
      if (tensor.type && tensor.shape.size() <= kMaxRank) file.view(tensor.name);
    std::cout << "taken\n";
  } catch (const FileError& error) {
    std::cout << error.what() << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::span<char*> args(argv + 1, static_cast<std::size_t>(argc - 1));
  if (!args.empty() && std::string(args[0]) == "--check") {
    for (const char* path : args.subspan(1)) check(path);
    return 0;
  }
  if (args.size() != 2) return 2;
  try {
    copy(args[0], args[1]);
  } catch (const FileError& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
