#include "attention/mask.h"

#include <memory>

#include "gtest/gtest.h"
#include "headwise/error.h"

namespace headwise::attention {
namespace {

using Kind = kernels::MaskMatrix::Kind;

class MaskOfScores : public ::testing::Test {
 protected:
  static constexpr std::size_t kB = 2, kHeads = 3, kTq = 4, kTk = 5;
  const MaskTarget target_{DType::f32, {kB, kHeads, kTq, kTk}};
  bool flags_[kB * kHeads * kTq * kTk] = {};

  // Element (b, h, t, j) of the mask as the kernel finds it, as an index into flags_.
  std::ptrdiff_t found(const CheckedMask& mask, std::size_t b, std::size_t h, std::size_t t,
                       std::size_t j) const {
    const kernels::MaskMatrix m = mask_matrix(mask, {b}, h);
    return static_cast<const bool*>(m.data) - flags_ + static_cast<std::ptrdiff_t>(t) * m.stride_t +
           static_cast<std::ptrdiff_t>(j) * m.stride_j;
  }

  // Every subset of dims at size 1, and every rank from 2.
  void check_shape(const Shape& shape) {
    SCOPED_TRACE(to_string(shape));
    const Strides strides = contiguous_strides(shape);
    const CheckedMask mask =
        check_mask("mask", Mask::keep({flags_, DType::boolean, shape}), target_);
    for (std::size_t b = 0; b < kB; ++b)
      for (std::size_t h = 0; h < kHeads; ++h)
        for (std::size_t t = 0; t < kTq; ++t)
          for (std::size_t j = 0; j < kTk; ++j) {
            const std::size_t full[] = {b, h, t, j};
            std::ptrdiff_t expected = 0;
            for (std::size_t n = 0; n < shape.size(); ++n)
              if (shape[n] != 1)
                expected += strides[n] * static_cast<std::ptrdiff_t>(full[4 - shape.size() + n]);
            ASSERT_EQ(found(mask, b, h, t, j), expected);
          }
  }
};

TEST_F(MaskOfScores, EveryBroadcastableShapeIsReadInPlace) {
  const std::size_t full[] = {kB, kHeads, kTq, kTk};
  for (std::size_t rank = 2; rank <= 4; ++rank)
    for (unsigned single = 0; single < 1u << rank; ++single) {
      Shape shape;
      for (std::size_t n = 0; n < rank; ++n)
        shape.push_back((single >> n & 1u) != 0 ? 1 : full[4 - rank + n]);
      check_shape(shape);
    }
}

TEST_F(MaskOfScores, MeaningTravelsWithTheMask) {
  float added[kTk] = {};
  EXPECT_EQ(check_mask("mask", Mask::keep({flags_, DType::boolean, {1, kTk}}), target_).kind,
            Kind::keep);
  EXPECT_EQ(check_mask("mask", Mask::ignore({flags_, DType::boolean, {1, kTk}}), target_).kind,
            Kind::ignore);
  const CheckedMask bias = check_mask("mask", Mask::bias({added, DType::f32, {1, kTk}}), target_);
  EXPECT_EQ(bias.kind, Kind::bias);
  EXPECT_EQ(mask_matrix(bias, {1}, 2).dtype, DType::f32);
  EXPECT_EQ(mask_matrix(CheckedMask{}, {1}, 2).kind, Kind::none);
}

TEST_F(MaskOfScores, BiasDtypes) {  // MS09
  static constexpr DType kAll[] = {DType::f32, DType::f64, DType::bf16, DType::f16, DType::boolean,
                                   DType::u8,  DType::i8,  DType::u16,  DType::i16, DType::u32,
                                   DType::i32, DType::u64, DType::i64};
  alignas(8) char memory[8 * kTk] = {};
  for (const DType q : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const DType found : kAll) {
      const Mask mask = Mask::bias({memory, found, {1, kTk}});
      const bool half = q == DType::bf16 || q == DType::f16;
      const bool allowed = found == q || (half && found == DType::f32);
      const auto check = [&] { check_mask("mask", mask, {q, target_.scores}); };
      if (allowed)
        EXPECT_NO_THROW(check());
      else
        EXPECT_THROW(check(), DTypeError) << name_of(found) << " beside " << name_of(q);
      const Mask keep = Mask::keep({memory, found, {1, kTk}});
      if (found == DType::boolean)
        EXPECT_NO_THROW(check_mask("mask", keep, {q, target_.scores}));
      else
        EXPECT_THROW(check_mask("mask", keep, {q, target_.scores}), DTypeError);
    }
}

// B = n_heads: a (B, T_q, T_k) mask cannot be told from one for each head, and is one (MS08).
TEST_F(MaskOfScores, ThreeDimsAlignToTheHeads) {
  const MaskTarget square{DType::f32, {3, 3, kTq, kTk}};
  const CheckedMask mask =
      check_mask("mask", Mask::keep({flags_, DType::boolean, {3, kTq, kTk}}), square);
  EXPECT_EQ(found(mask, 2, 1, 0, 0), static_cast<std::ptrdiff_t>(kTq * kTk));
}

}  // namespace
}  // namespace headwise::attention
