// What is written comes back, through every format; what is damaged gives an error and no crash.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/io.h"
#include "io/support.h"
#include "support/environment.h"

namespace headwise {
namespace {

TEST(TensorFile, SafetensorsComesBack) {
  const test::TempFolder folder;
  const float x[6] = {0, 1, 2, 3, 4, 5};
  const std::uint8_t y[3] = {7, 8, 9};
  const double z[1] = {0.5};
  const std::vector<NamedView> tensors = {{"y", {y, {3}}},
                                          {"x", {x, DType::f32, {3, 2}, {1, 3}}},
                                          {"z \"\u00e4\"", {z, Shape{}}},
                                          {"empty", {static_cast<const float*>(nullptr), {0, 5}}}};
  const std::string path = folder / "a.safetensors";
  save_safetensors(path, tensors, {{"key", "value\n"}});
  const TensorFile file = TensorFile::open(path);
  EXPECT_EQ(file.format(), TensorFile::Format::safetensors);
  EXPECT_EQ(file.metadata().at("key"), "value\n");
  ASSERT_EQ(file.tensors().size(), 4u);
  for (const NamedView& tensor : tensors) test::expect_equal(file.view(tensor.name), tensor.view);
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_THROW(file.view("nothing"), FileError);
}

TEST(TensorFile, NpyComesBack) {
  const test::TempFolder folder;
  const float x[6] = {0, 1, 2, 3, 4, 5};
  for (const Shape& shape : {Shape{}, Shape{6}, Shape{2, 3}, Shape{3, 1, 2}, Shape{0, 4}}) {
    const ConstTensorView view(x, shape);
    save_npy(folder / "a.npy", view);
    const TensorFile file = TensorFile::open(folder / "a.npy");
    EXPECT_EQ(file.format(), TensorFile::Format::npy);
    test::expect_equal(file.view(""), view);
  }
}

TEST(TensorFile, NpzComesBack) {
  const test::TempFolder folder;
  const float x[6] = {0, 1, 2, 3, 4, 5};
  const double y[2] = {0.5, -1};
  const std::vector<NamedView> tensors = {{"x", {x, DType::f32, {3, 2}, {1, 3}}},
                                          {"a/\u00e4 b", {y, {2}}},
                                          {"", {y, Shape{}}},
                                          {"empty", {x, {0, 3}}}};
  save_npz(folder / "a.npz", tensors);
  const TensorFile file = TensorFile::open(folder / "a.npz");
  EXPECT_EQ(file.format(), TensorFile::Format::npz);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const NamedView& tensor : tensors) test::expect_equal(file.view(tensor.name), tensor.view);
}

// A small file of each format, with all that its reader looks at.
std::vector<std::string> small_files() {
  const test::TempFolder folder;
  const float x[6] = {0, 1, 2, 3, 4, 5};
  const std::vector<NamedView> tensors = {{"in_proj_weight", {x, {3, 1}}},
                                          {"out_proj.weight", {x, {1, 1}}}};
  std::vector<std::string> files;
  save_safetensors(folder / "a", tensors, {{"k", "v"}});
  files.push_back(test::read_bytes(folder / "a"));
  save_npy(folder / "a", {x, {2, 3}});
  files.push_back(test::read_bytes(folder / "a"));
  save_npz(folder / "a", tensors);
  files.push_back(test::read_bytes(folder / "a"));
  test::ZipBuilder zip;
  test::ZipMember packed("x.npy", test::floats_npy(20), true);
  packed.zip64 = packed.sizes_behind = true;
  zip.add(packed);
  files.push_back(zip.finish64());
  return files;
}

// A file in memory, with a path: thousands of files on a disk take their time.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("headwise-test", 0)) { EXPECT_GE(fd_, 0); }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  void set(std::string_view bytes) const {
    ASSERT_EQ(ftruncate(fd_, static_cast<off_t>(bytes.size())), 0);
    ASSERT_EQ(pwrite(fd_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }

 private:
  int fd_;
};

// Opens the file and asks for everything; only a FileError may come of it.
void look_at(const std::string& path) {
  try {
    const TensorFile file = TensorFile::open(path);
    find_attention_blocks(file);
    for (const TensorInfo& tensor : file.tensors()) {
      try {
        Tensor::copy_of(file.view(tensor.name));
      } catch (const FileError& error) {
        ASSERT_LE(std::string(error.what()).size(), 500u);
      }
    }
  } catch (const FileError& error) {
    ASSERT_LE(std::string(error.what()).size(), 500u);
  }
}

TEST(HostileFiles, CutAtEveryByte) {
  const MemoryFile memory;
  for (const std::string& file : small_files())
    for (std::size_t n = 0; n <= file.size(); ++n) {
      memory.set(file.substr(0, n));
      look_at(memory.path());
    }
}

TEST(HostileFiles, EveryByteChanged) {
  const MemoryFile memory;
  for (const std::string& file : small_files())
    for (std::size_t i = 0; i < file.size(); ++i)
      for (const int value : {0x00, 0x01, 0x20, 0x7f, 0x80, 0xff, file[i] ^ 1, file[i] ^ 0x10}) {
        std::string changed = file;
        changed[i] = static_cast<char>(value);
        memory.set(changed);
        look_at(memory.path());
      }
}

TEST(HostileFiles, PiecesLeftOutDoubledAndSwapped) {
  const MemoryFile memory;
  unsigned state = 1;
  const auto draw = [&state](std::size_t below) {
    state = state * 1664525u + 1013904223u;
    return below == 0 ? 0 : (state >> 8) % below;
  };
  const std::vector<std::string> files = small_files();
  for (int round = 0; round < 2000; ++round) {
    const std::string &a = files[draw(files.size())], &b = files[draw(files.size())];
    const std::size_t i = draw(a.size()), j = draw(b.size());
    memory.set(a.substr(0, i) + b.substr(j));
    look_at(memory.path());
  }
}

// Within the memory and the second that docs/files.md promises; sanitizers cost extra.
TEST(HostileFiles, HugeOnesCostNothing) {
  const test::TempFolder folder;
  constexpr std::uintmax_t kTerabyte = std::uintmax_t{1} << 40;
  const std::vector<std::pair<std::string, std::string>> starts = {
      {"zeros", ""},
      {"safetensors", test::le(100'000'000, 8) + "{"},
      {"npy", std::string("\x93NUMPY\x03\x00", 8) + test::le(1 << 20, 4)},
      {"npz", "PK\3\4"},
      {"end", "PK\5\6"}};
  for (const auto& [name, start] : starts) {
    const std::string path = folder / name;
    test::write_bytes(path, start);
    std::error_code error;
    std::filesystem::resize_file(path, kTerabyte, error);
    if (error) GTEST_SKIP() << "no sparse files here";
    const auto before = std::chrono::steady_clock::now();
    test::file_error_of([&] { TensorFile::open(path); });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - before;
    EXPECT_LT(seconds.count(), 5.0) << name;  // on a busy machine with sanitizers
  }
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  if (!test::sanitized()) {
    EXPECT_LT(usage.ru_maxrss, 512 * 1024);
  }
}

TEST(TensorFile, TheFormatFollowsFromTheBytes) {
  const test::TempFolder folder;
  test::write_bytes(folder / "a.npz", test::floats_npy(1));
  EXPECT_EQ(TensorFile::open(folder / "a.npz").format(), TensorFile::Format::npy);
  test::write_bytes(folder / "a.npy", "just some text");
  EXPECT_TRUE(test::file_error_of([&] { TensorFile::open(folder / "a.npy"); })
                  .ends_with("expected a .safetensors, .npy or .npz file (safetensors: at most "
                             "100000000)"));
}

TEST(TensorFile, ViewsFromSeveralThreads) {
  const test::TempFolder folder;
  test::ZipBuilder zip;
  for (int i = 0; i < 8; ++i)
    zip.add({std::to_string(i) + ".npy", test::floats_npy(1000), i % 2 == 0});
  test::write_bytes(folder / "a", zip.finish());
  const TensorFile file = TensorFile::open(folder / "a");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&file] {
      for (int i = 0; i < 8; ++i)
        EXPECT_EQ(file.view(std::to_string(i)).data, file.view(std::to_string(i)).data);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace headwise
