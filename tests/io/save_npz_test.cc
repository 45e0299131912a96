#include <vector>

#include "io/support.h"

namespace headwise {
namespace {

TEST(SaveNpz, ElementsLieAtMultiplesOf64) {
  const test::TempFolder folder;
  const std::vector<double> memory(50, 1.25);
  std::vector<NamedView> tensors;
  for (std::size_t n = 0; n < 40; ++n)
    tensors.push_back({std::string(n, 'n') + ".\u00e4", {memory.data(), {n}}});
  save_npz(folder / "a.npz", tensors);
  const TensorFile file = TensorFile::open(folder / "a.npz");
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (std::size_t n = 0; n < 40; ++n) {
    EXPECT_EQ(file.tensors()[n].name, tensors[n].name);
    const ConstTensorView view = file.view(tensors[n].name);
    test::expect_equal(view, tensors[n].view);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 64, 0u);
  }
}

TEST(SaveNpz, EqualInputGivesEqualBytes) {
  const test::TempFolder folder;
  const float x[2] = {1, 2};
  save_npz(folder / "a", std::vector<NamedView>{{"x", {x, {2}}}});
  save_npz(folder / "b", std::vector<NamedView>{{"x", {x, {2}}}});
  EXPECT_EQ(test::read_bytes(folder / "a"), test::read_bytes(folder / "b"));
}

TEST(SaveNpz, NoTensorsAreAFile) {
  const test::TempFolder folder;
  save_npz(folder / "a", {});
  EXPECT_TRUE(TensorFile::open(folder / "a").tensors().empty());
}

TEST(SaveNpz, MoreTensorsThan16BitsCount) {
  const test::TempFolder folder;
  const std::uint8_t x[1] = {5};
  std::vector<NamedView> tensors;
  for (std::size_t i = 0; i < 65536; ++i) tensors.push_back({std::to_string(i), {x, {1}}});
  save_npz(folder / "a", tensors);
  const TensorFile file = TensorFile::open(folder / "a");
  EXPECT_EQ(file.tensors().size(), 65536u);
  EXPECT_EQ(*static_cast<const std::uint8_t*>(file.view("65535").data), 5);
  tensors.push_back({"one more", {x, {1}}});
  EXPECT_THROW(save_npz(folder / "a", tensors), ArgumentError);
}

TEST(SaveNpz, NamesThatAreTooLongOrGivenTwice) {
  const test::TempFolder folder;
  const float x[1] = {};
  const auto save = [&](const std::vector<NamedView>& tensors) {
    save_npz(folder / "a", tensors);
    return TensorFile::open(folder / "a").tensors().size();
  };
  EXPECT_EQ(save({{std::string(65531, 'n'), {x, {1}}}}), 1u);
  EXPECT_THROW(save({{std::string(65532, 'n'), {x, {1}}}}), ArgumentError);
  EXPECT_THROW(save({{"a", {x, {1}}}, {"a", {x, {1}}}}), ArgumentError);
}

}  // namespace
}  // namespace headwise
