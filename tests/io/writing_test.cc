#include "io/writing.h"

#include <vector>

#include "io/support.h"

namespace headwise::io {
namespace {

std::string wrong_argument(const std::vector<NamedView>& tensors) {
  try {
    check_tensors(tensors);
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "none";
}

TEST(Writing, WrongTensorsAreNamed) {
  const float x[4] = {};
  const ConstTensorView good(x, {4});
  EXPECT_EQ(wrong_argument({{"a", good}, {"b", good}}), "none");
  EXPECT_EQ(wrong_argument({{"a", good}, {"a", good}}),
            "tensors[\"a\"]: found this name twice, expected each name once");
  EXPECT_EQ(wrong_argument({{"\xff", good}}),
            "tensors[\"\\xff\"]: found a name that is not UTF-8, expected UTF-8");
  EXPECT_EQ(wrong_argument({{"a", {static_cast<const float*>(nullptr), {4}}}}),
            "tensors[\"a\"]: found null data for shape (4,), expected a pointer to its elements");
}

TEST(Writing, ElementsAreCopiedOnlyWhenTheyLieOtherwise) {
  const std::uint8_t x[6] = {0, 1, 2, 3, 4, 5};
  const auto bytes_of_view = [](const ConstTensorView& view) {
    const Elements elements(view);
    return std::string(reinterpret_cast<const char*>(elements.bytes().data()),
                       elements.bytes().size());
  };
  const Elements same(ConstTensorView(x, {2, 3}));
  EXPECT_EQ(static_cast<const void*>(same.bytes().data()), x);
  const Elements one_row({x, DType::u8, {1, 3}, {-7, 1}});  // the stride of one row says nothing
  EXPECT_EQ(static_cast<const void*>(one_row.bytes().data()), x);
  EXPECT_EQ(bytes_of_view({x, DType::u8, {3, 2}, {1, 3}}), std::string("\0\3\1\4\2\5", 6));
  EXPECT_EQ(bytes_of_view({x + 2, DType::u8, {3}, {-1}}), std::string("\2\1\0", 3));
  EXPECT_EQ(bytes_of_view({x + 5, DType::u8, {2, 2}, {0, 0}}), "\5\5\5\5");
  EXPECT_EQ(bytes_of_view({x, DType::u8, {0, 2}, {1, 1}}), "");
  EXPECT_EQ(bytes_of_view({x + 1, DType::u8, {}, {}}), "\1");
}

}  // namespace
}  // namespace headwise::io
