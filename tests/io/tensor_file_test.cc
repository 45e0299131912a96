// What is written comes back, through every format.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/io.h"
#include "io/support.h"

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

}  // namespace
}  // namespace headwise
