#include "attention/mask.h"

#include <string>

#include "core/check.h"

namespace headwise::attention {
namespace {

using Kind = kernels::MaskMatrix::Kind;

Kind kind_of(const Mask& mask) {
  switch (mask.kind()) {
    case Mask::Kind::keep:
      return Kind::keep;
    case Mask::Kind::ignore:
      return Kind::ignore;
    case Mask::Kind::bias:
      break;
  }
  return Kind::bias;
}

void check_mask_dtype(std::string_view argument, const Mask& mask, DType q) {
  const DType found = mask.view().dtype;
  if (mask.kind() != Mask::Kind::bias) {
    if (found != DType::boolean)
      core::throw_dtype(argument, found,
                        "bool for Mask::keep and Mask::ignore (Mask::bias is added to scores)");
    return;
  }
  const bool half = q == DType::bf16 || q == DType::f16;
  if (found == q || (half && found == DType::f32)) return;
  core::throw_dtype(argument, found,
                    "Mask::bias of q's dtype " + std::string(name_of(q)) + (half ? " or f32" : ""));
}

// Right-aligned; the mask may be 1 where the scores are not, never the other way round.
bool broadcasts_to(const Shape& mask, const Shape& scores) {
  if (mask.size() > scores.size()) return false;
  for (std::size_t n = 0; n < mask.size(); ++n)
    if (mask.from_back(n) != scores.from_back(n) && mask.from_back(n) != 1) return false;
  return true;
}

// A (B, T_q, T_k) mask beside 4-D inputs meets the heads; say how to write one for each batch.
std::string hint_for_missing_heads(const Shape& mask, const Shape& scores) {
  if (mask.size() < 3 || mask.size() + 1 != scores.size()) return "";
  Shape with_heads(mask.begin(), mask.end() - 2);
  with_heads.push_back(1);
  with_heads.push_back(mask.from_back(1));
  with_heads.push_back(mask.from_back(0));
  if (!broadcasts_to(with_heads, scores)) return "";
  return "; one mask for all heads of a batch is (B, 1, T_q, T_k), here " + to_string(with_heads);
}

}  // namespace

CheckedMask check_mask(std::string_view argument, const Mask& mask, const MaskTarget& target) {
  const ConstTensorView& view = mask.view();
  check_mask_dtype(argument, mask, target.q_dtype);
  if (view.rank() < 2)
    core::throw_argument(argument,
                         std::to_string(view.rank()) + " dims in shape " + to_string(view.shape),
                         "at least 2, (T_q, T_k) = (" + std::to_string(target.scores.from_back(1)) +
                             ", " + std::to_string(target.scores.from_back(0)) + ")");
  if (!broadcasts_to(view.shape, target.scores))
    core::throw_argument(argument, "shape " + to_string(view.shape),
                         "a shape that broadcasts to " + to_string(target.scores) +
                             hint_for_missing_heads(view.shape, target.scores));
  core::check_view(argument, view);
  CheckedMask checked;
  checked.kind = kind_of(mask);
  checked.entries = {view.data, view.dtype,
                     broadcast_layout(view.shape, view.strides, kMatrixPerHead, target.scores)};
  return checked;
}

kernels::MaskMatrix mask_matrix(const CheckedMask& mask, const Shape& position, std::size_t h) {
  kernels::MaskMatrix matrix;
  matrix.kind = mask.kind;
  if (mask.kind == Kind::none) return matrix;
  const Input& entries = mask.entries;
  matrix.dtype = entries.dtype;
  matrix.data = element(entries.data, entries.dtype, offset_of(entries.at, position, h));
  matrix.stride_t = entries.at.t;
  matrix.stride_j = entries.at.i;
  return matrix;
}

}  // namespace headwise::attention
