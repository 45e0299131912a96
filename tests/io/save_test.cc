#include <map>
#include <vector>

#include "io/support.h"

namespace headwise {
namespace {

constexpr DType kAll[] = {DType::f32, DType::f64, DType::bf16, DType::f16, DType::boolean,
                          DType::u8,  DType::i8,  DType::u16,  DType::i16, DType::u32,
                          DType::i32, DType::u64, DType::i64};

TEST(Save, EveryDtypeAndRankComesBackAligned) {
  const test::TempFolder folder;
  std::vector<std::uint64_t> memory(4096);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = i * 0x9e3779b97f4a7c15u;
  std::vector<NamedView> tensors;
  for (const DType dtype : kAll)
    for (std::size_t rank = 0; rank <= kMaxRank; rank += 4) {
      Shape shape;
      for (std::size_t i = 0; i < rank; ++i) shape.push_back(i % 5 == 0 ? 3 : 1);
      tensors.push_back(
          {std::string(name_of(dtype)) + std::to_string(rank), {memory.data(), dtype, shape}});
    }
  save_safetensors(folder / "a", tensors);
  const TensorFile file = TensorFile::open(folder / "a");
  for (const NamedView& tensor : tensors) {
    const ConstTensorView view = file.view(tensor.name);
    test::expect_equal(view, tensor.view);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype), 0u);
    save_npy(folder / "b", tensor.view);
    test::expect_equal(TensorFile::open(folder / "b").view(""), tensor.view);
  }
}

TEST(Save, NoTensorsAreAFile) {
  const test::TempFolder folder;
  save_safetensors(folder / "a", {}, {{"\"k\"\n", "\u00e4"}});
  const TensorFile file = TensorFile::open(folder / "a");
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.metadata().at("\"k\"\n"), "\u00e4");
}

TEST(Save, WrongArgumentsWriteNothing) {
  const test::TempFolder folder;
  const float x[1] = {};
  const std::vector<NamedView> good = {{"a", {x, {1}}}}, bad = {{"__metadata__", {x, {1}}}};
  test::write_bytes(folder / "a", "old");
  EXPECT_THROW(save_safetensors(folder / "a", bad), ArgumentError);
  EXPECT_THROW(save_safetensors(folder / "a", good, {{"k", "\xff"}}), ArgumentError);
  EXPECT_THROW(save_safetensors(folder / "a", good, {{"\xff", "v"}}), ArgumentError);
  EXPECT_THROW(save_npy(folder / "a", {static_cast<const float*>(nullptr), {1}}), ArgumentError);
  EXPECT_EQ(test::read_bytes(folder / "a"), "old");
  EXPECT_EQ(
      test::file_error_of([&] { save_safetensors(folder / "no/a", good); }),
      folder / "no/a" + ": found no such file or folder, expected a place that can be written");
}

TEST(Save, ManyTensorsOfMixedWidthStayAligned) {
  const test::TempFolder folder;
  const std::vector<std::uint64_t> memory(8);
  std::vector<NamedView> tensors;
  for (std::size_t i = 0; i < 100; ++i)
    tensors.push_back({std::to_string(i), {memory.data(), kAll[i % 13], {i % 8}}});
  save_safetensors(folder / "a", tensors);
  const TensorFile file = TensorFile::open(folder / "a");
  for (const NamedView& tensor : tensors) test::expect_equal(file.view(tensor.name), tensor.view);
}

}  // namespace
}  // namespace headwise
