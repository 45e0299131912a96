#include "attention/layout.h"

#include <vector>

#include "gtest/gtest.h"

namespace headwise::attention {
namespace {

TEST(Layout, PositionsCountLikeRowMajor) {
  const Shape batch{2, 3, 4};
  std::size_t b = 0;
  for (std::size_t x = 0; x < 2; ++x)
    for (std::size_t y = 0; y < 3; ++y)
      for (std::size_t z = 0; z < 4; ++z) EXPECT_EQ(batch_position(batch, b++), (Shape{x, y, z}));
  EXPECT_EQ(batch_position({}, 0), Shape{});
}

TEST(Layout, OffsetsFollowStrides) {
  Layout at;
  at.batch = {100, -10};
  at.h = 7;
  EXPECT_EQ(offset_of(at, {2, 3}, 4), 200 - 30 + 28);
}

TEST(Layout, OffsetsPast32Bits) {  // SH19
  Layout at;
  at.batch = {std::ptrdiff_t{1} << 40};
  at.h = std::ptrdiff_t{1} << 35;
  EXPECT_EQ(offset_of(at, {3}, 5), 3 * (std::ptrdiff_t{1} << 40) + 5 * (std::ptrdiff_t{1} << 35));
  const auto* base = reinterpret_cast<const std::byte*>(std::uintptr_t{1} << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(
                element(static_cast<const void*>(base), DType::f64, std::ptrdiff_t{1} << 33)),
            (std::uintptr_t{1} << 20) + (std::uintptr_t{1} << 36));
}

TEST(Layout, MissingAndSingleDimsGetStrideZero) {
  const Shape full{6, 1, 5, 4, 3, 2};  // three batch dims, one of them single; 4 heads
  const Layout own = broadcast_layout(full, contiguous_strides(full), kMatrixPerHead, full);
  EXPECT_EQ(own.batch, (Strides{120, 24}));
  EXPECT_EQ(own.h, 6);
  EXPECT_EQ(own.t, 2);
  EXPECT_EQ(own.i, 1);

  const Layout row = broadcast_layout({5, 1, 1, 2}, {2, 77, 77, 1}, kMatrixPerHead, full);
  EXPECT_EQ(row.batch, (Strides{0, 2}));
  EXPECT_EQ(row.h, 0);
  EXPECT_EQ(row.t, 0);
  EXPECT_EQ(row.i, 1);

  const Layout matrix = broadcast_layout({3, 2}, {2, 1}, kMatrixPerHead, full);
  EXPECT_EQ(matrix.batch, (Strides{0, 0}));
  EXPECT_EQ(matrix.h, 0);
  EXPECT_EQ(matrix.t, 2);
}

TEST(Layout, EmptyTensorsHaveNoPositions) {
  const Shape full{6, 4, 3, 2};
  const Layout empty = broadcast_layout({6, 4, 0, 2}, {9, 5, 7, 1}, kMatrixPerHead, full);
  EXPECT_EQ(empty.batch, (Strides{0}));
  EXPECT_EQ(empty.h, 0);
  EXPECT_EQ(empty.t, 0);
  EXPECT_EQ(empty.i, 0);
}

TEST(Layout, OtherAxes) {
  const Shape full{6, 5, 4, 3, 2};
  const Layout rows = broadcast_layout({6, 5, 4, 3}, {60, 12, 3, 1}, kRowsPerHead, full);
  EXPECT_EQ(rows.batch, (Strides{60, 12}));
  EXPECT_EQ(rows.h, 3);
  EXPECT_EQ(rows.t, 1);
  EXPECT_EQ(rows.i, 0);

  const Layout average = broadcast_layout({6, 5, 3, 9}, {135, 27, 9, 1}, kMatrixPerBatch, full);
  EXPECT_EQ(average.batch, (Strides{135, 27}));
  EXPECT_EQ(average.h, 0);
  EXPECT_EQ(average.t, 9);
  EXPECT_EQ(average.i, 1);
}

}  // namespace
}  // namespace headwise::attention
