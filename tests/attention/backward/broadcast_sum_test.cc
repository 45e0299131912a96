// Gradients of broadcast tensors: where their matrices lie, and the sum of what was broadcast.
#include "attention/backward/broadcast_sum.h"

#include <random>

#include "gtest/gtest.h"
#include "support/gradient_reference.h"

namespace headwise {
namespace {

using test::StridedTensor;

TEST(BroadcastSum, PlacesAreThoseOfTheLeadingDims) {
  const Shape shape{2, 1, 3, 5, 7};
  const Strides strides{1000, 77, 100, 7, 1};
  const attention::Places places = attention::places_of(shape, strides);
  ASSERT_EQ(places.n, 6u);
  EXPECT_EQ(attention::place_offset(places, 0), 0);
  EXPECT_EQ(attention::place_offset(places, 2), 200);
  EXPECT_EQ(attention::place_offset(places, 4), 1100);
  const Shape row{7};
  const Strides row_strides{1};
  EXPECT_EQ(attention::places_of(row, row_strides).n, 1u);
}

// Every tensor but one of full shape, at every rank.
TEST(BroadcastSum, SumsOverLeadingDimsAndHeads) {
  const Shape full{2, 3, 4, 70, 12};
  const Shape reduced[] = {{1, 3, 4, 70, 12}, {2, 1, 4, 70, 12}, {3, 4, 70, 12},
                           {4, 70, 12},       {70, 12},          {2, 3, 1, 70, 12}};
  for (const Shape& small : reduced)
    for (int which = 0; which < 3; ++which) {
      SCOPED_TRACE(to_string(small) + " for tensor " + std::to_string(which));
      std::mt19937 random(3);
      StridedTensor x[] = {{DType::f32, which == 0 ? small : full},
                           {DType::f32, which == 1 ? small : full},
                           {DType::f32, which == 2 ? small : full}};
      StridedTensor d_o(DType::f32, full);
      for (StridedTensor* one : {&x[0], &x[1], &x[2], &d_o}) one->fill_normal(random);
      test::BackwardRun(x[0], x[1], x[2], {}, d_o)
          .expect(test::reference_gradients(x[0], x[1], x[2], {}, d_o));
    }
}

}  // namespace
}  // namespace headwise
