// Shared memory between views, against listing every byte.
#include "attention/overlap.h"

#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace headwise::attention {
namespace {

// The address of each element, one entry for each index.
std::vector<std::uintptr_t> addresses(const ConstTensorView& view) {
  std::vector<std::uintptr_t> all;
  Shape index(view.shape);
  for (std::size_t& i : index) i = 0;
  const std::size_t n = element_count(view.shape);
  for (std::size_t count = 0; count < n; ++count) {
    std::ptrdiff_t offset = 0;
    for (std::size_t d = 0; d < index.size(); ++d)
      offset += static_cast<std::ptrdiff_t>(index[d]) * view.strides[d];
    all.push_back(
        reinterpret_cast<std::uintptr_t>(view.data) +
        static_cast<std::uintptr_t>(offset * static_cast<std::ptrdiff_t>(size_of(view.dtype))));
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < view.shape[d]) break;
      index[d] = 0;
    }
  }
  return all;
}

bool overlap_by_listing(const ConstTensorView& a, const ConstTensorView& b) {
  std::set<std::uintptr_t> bytes;
  for (const std::uintptr_t address : addresses(a))
    for (std::size_t n = 0; n < size_of(a.dtype); ++n) bytes.insert(address + n);
  for (const std::uintptr_t address : addresses(b))
    for (std::size_t n = 0; n < size_of(b.dtype); ++n)
      if (bytes.count(address + n) > 0) return true;
  return false;
}

bool overlaps_itself_by_listing(const ConstTensorView& view) {
  const std::vector<std::uintptr_t> all = addresses(view);
  return std::set<std::uintptr_t>(all.begin(), all.end()).size() < all.size();
}

class RandomViews {
 public:
  ConstTensorView next() {
    static constexpr DType kTypes[] = {DType::boolean, DType::f16, DType::f32, DType::f64};
    ConstTensorView view;
    view.dtype = kTypes[number(0, 3)];
    view.data = memory_ + 4096 + 8 * number(-40, 40) + (view.dtype == DType::boolean ? 1 : 0);
    const int rank = number(0, 4);
    for (int n = 0; n < rank; ++n) {
      view.shape.push_back(static_cast<std::size_t>(number(0, 9) == 0 ? 0 : number(1, 5)));
      view.strides.push_back(number(-12, 24));
    }
    return view;
  }
  int number(int low, int high) { return std::uniform_int_distribution<>(low, high)(generator_); }

 private:
  std::mt19937 generator_{7};
  alignas(8) std::byte memory_[8192];
};

TEST(Overlap, AgreesWithListingEveryByte) {
  RandomViews random;
  int found = 0;
  constexpr int kPairs = 4000;
  for (int n = 0; n < kPairs; ++n) {
    const ConstTensorView a = random.next(), b = random.next();
    const bool expected = overlap_by_listing(a, b);
    ASSERT_EQ(overlap(a, b), expected) << "pair " << n;
    ASSERT_EQ(overlap(b, a), expected) << "pair " << n;
    ASSERT_EQ(overlaps_itself(a), overlaps_itself_by_listing(a)) << "view " << n;
    found += expected ? 1 : 0;
  }
  EXPECT_GT(found, kPairs / 10);
  EXPECT_LT(found, kPairs * 9 / 10);
}

// o in the fourth part of a packed (T, 4, n_heads, d) tensor whose other parts are q, k and v.
TEST(Overlap, SlicesOfAPackedTensorAreApart) {
  constexpr std::size_t T = 1000, n_heads = 12, d = 64;
  std::vector<float> packed(T * 4 * n_heads * d);
  const auto part = [&](std::size_t n) {
    return ConstTensorView(packed.data() + n * n_heads * d, DType::f32, {n_heads, T, d},
                           {d, 4 * n_heads * d, 1});
  };
  for (std::size_t a = 0; a < 4; ++a) {
    EXPECT_FALSE(overlaps_itself(part(a)));
    for (std::size_t b = 0; b < 4; ++b) EXPECT_EQ(overlap(part(a), part(b)), a == b);
  }
}

TEST(Overlap, EmptyViewsShareNothing) {
  float x = 0;
  const ConstTensorView some(&x, DType::f32, {1}), none(&x, DType::f32, {3, 0}, {0, 0});
  EXPECT_TRUE(overlap(some, some));
  EXPECT_FALSE(overlap(some, none));
  EXPECT_FALSE(overlaps_itself(none));
}

// Sixteen dims whose strides hardly differ have more combinations than can be tried.
TEST(Overlap, GivesUpOnTheSafeSide) {
  std::vector<char> memory(1 << 20);
  Shape shape;
  Strides strides;
  for (int n = 0; n < 16; ++n) {
    shape.push_back(30);
    strides.push_back(1000 + 2 * n);
  }
  const ConstTensorView even(memory.data(), DType::u8, shape, strides);
  const ConstTensorView odd(memory.data() + 1, DType::u8, shape, strides);
  EXPECT_TRUE(overlap(even, even));
  EXPECT_TRUE(overlap(even, odd));  // they are apart, but that takes too long to see
}

}  // namespace
}  // namespace headwise::attention
