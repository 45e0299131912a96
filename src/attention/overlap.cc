// Two elements meet when a sum of (stride * index) hits a certain distance, every index within its
// range: a bounded linear equation. Largest stride first, each index is left with a few candidates
// (one, when strides nest), so the search ends at once for ordinary views; a budget bounds the
// rest.
#include "attention/overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "core/check.h"

namespace headwise::attention {
namespace {

// Addresses reach 2^63, sums of two views' terms twice as far.
__extension__ using Wide = __int128;

struct Term {
  Wide stride;  // > 0
  Wide last;    // index in [0, last]
};

constexpr int kBudget = 20000;  // candidates tried before "overlaps" is assumed: about 0.1 ms

class Equation {
 public:
  // Adds stride * index for index in [0, last]; a negative stride is turned round.
  void add(Wide stride, Wide last) {
    if (last == 0 || stride == 0) return;
    if (stride < 0) {
      target_ -= stride * last;
      stride = -stride;
    }
    for (std::size_t n = 0; n < size_; ++n)
      if (terms_[n].stride == stride) {  // the same step in two dims: one longer dim
        terms_[n].last += last;
        return;
      }
    terms_[size_++] = {stride, last};
  }
  // The sum that is looked for.
  void add_to_target(Wide value) { target_ += value; }

  bool has_solution() {
    std::sort(terms_.begin(), terms_.begin() + size_,
              [](const Term& a, const Term& b) { return a.stride > b.stride; });
    Wide reach = 0;
    for (std::size_t n = size_; n-- > 0;) {
      reach_[n + 1] = reach;
      reach += terms_[n].stride * terms_[n].last;
    }
    reach_[0] = reach;
    budget_ = kBudget;
    return search(0, target_);
  }

 private:
  bool search(std::size_t n, Wide target) {
    if (target < 0 || target > reach_[n]) return false;
    if (n == size_) return target == 0;
    const Wide stride = terms_[n].stride, rest = reach_[n + 1];
    const Wide from = target <= rest ? 0 : (target - rest + stride - 1) / stride;
    const Wide to = std::min(terms_[n].last, target / stride);
    for (Wide i = from; i <= to; ++i) {
      if (--budget_ < 0) return true;
      if (search(n + 1, target - i * stride)) return true;
    }
    return false;
  }

  std::array<Term, 2 * kMaxRank + 1> terms_{};
  std::array<Wide, 2 * kMaxRank + 2> reach_{};  // largest sum of the terms from n on
  std::size_t size_ = 0;
  Wide target_ = 0;
  int budget_ = 0;
};

// From the smallest stride up, every stride steps over all that the ones before reach, as in any
// row-major tensor whatever the order of its dims: no two indices meet. Nothing overflows in a
// checked view.
bool is_nested(const ConstTensorView& view) {
  std::array<std::pair<std::ptrdiff_t, std::ptrdiff_t>, kMaxRank> dims;  // stride, last index
  std::size_t size = 0;
  for (std::size_t n = 0; n < view.rank(); ++n) {
    if (view.shape[n] == 1) continue;
    const std::pair dim(std::abs(view.strides[n]), static_cast<std::ptrdiff_t>(view.shape[n] - 1));
    std::size_t at = size++;
    for (; at > 0 && dims[at - 1].first > dim.first; --at) dims[at] = dims[at - 1];
    dims[at] = dim;
  }
  std::ptrdiff_t reach = 0;
  for (std::size_t n = 0; n < size; ++n) {
    if (dims[n].first <= reach) return false;
    reach += dims[n].first * dims[n].second;
  }
  return true;
}

// First byte and one past the last, relative to address 0; nothing for a view without elements.
struct Range {
  Wide begin, end;
};
std::optional<Range> bytes_of(const ConstTensorView& view) {
  const auto width = static_cast<std::ptrdiff_t>(size_of(view.dtype));
  const auto data = static_cast<Wide>(reinterpret_cast<std::uintptr_t>(view.data));
  Range range{data, data + width};
  for (std::size_t n = 0; n < view.rank(); ++n) {
    if (view.shape[n] == 0) return std::nullopt;
    if (view.shape[n] == 1) continue;
    const std::ptrdiff_t extent =
        static_cast<std::ptrdiff_t>(view.shape[n] - 1) * view.strides[n] * width;
    (extent < 0 ? range.begin : range.end) += extent;
  }
  return range;
}

}  // namespace

bool overlap(const ConstTensorView& a, const ConstTensorView& b) {
  const auto range_a = bytes_of(a), range_b = bytes_of(b);
  if (!range_a || !range_b || range_a->end <= range_b->begin || range_b->end <= range_a->begin)
    return false;
  const auto width_a = static_cast<Wide>(size_of(a.dtype));
  const auto width_b = static_cast<Wide>(size_of(b.dtype));
  // address of a's byte - address of b's byte = 0
  Equation equation;
  for (std::size_t n = 0; n < a.rank(); ++n)
    equation.add(width_a * a.strides[n], static_cast<Wide>(a.shape[n] - 1));
  for (std::size_t n = 0; n < b.rank(); ++n)
    equation.add(-width_b * b.strides[n], static_cast<Wide>(b.shape[n] - 1));
  equation.add(1, width_a - 1);
  equation.add(-1, width_b - 1);
  equation.add_to_target(static_cast<Wide>(reinterpret_cast<std::uintptr_t>(b.data)) -
                         static_cast<Wide>(reinterpret_cast<std::uintptr_t>(a.data)));
  return equation.has_solution();
}

bool overlaps_itself(const ConstTensorView& view) {
  if (!bytes_of(view) || is_nested(view)) return false;
  // Two indices that first differ in dim n, by at least 1: later dims by anything.
  for (std::size_t n = 0; n < view.rank(); ++n) {
    if (view.shape[n] == 1) continue;
    if (view.strides[n] == 0) return true;
    Equation equation;
    equation.add(view.strides[n], static_cast<Wide>(view.shape[n] - 2));
    equation.add_to_target(-static_cast<Wide>(view.strides[n]));
    for (std::size_t m = n + 1; m < view.rank(); ++m) {
      const Wide stride = view.strides[m], last = static_cast<Wide>(view.shape[m] - 1);
      if (view.shape[m] == 1) continue;
      equation.add(stride, 2 * last);  // from -last to last
      equation.add_to_target(stride * last);
    }
    if (equation.has_solution()) return true;
  }
  return false;
}

void check_writable(const char* name, const TensorView& view) {
  core::check_view(name, view);
  if (!overlaps_itself(view)) return;
  std::string strides;
  for (std::size_t n = 0; n < view.rank(); ++n)
    strides.append(n > 0 ? ", " : "").append(std::to_string(view.strides[n]));
  core::throw_argument(name, "strides (" + strides + ") for shape " + to_string(view.shape),
                       "memory of its own for each element");
}

void check_apart(const char* name, const TensorView& view, const char* other_name,
                 const ConstTensorView& other) {
  if (overlap(view, other))
    core::throw_argument(name, std::string("memory shared with ") + other_name,
                         "memory of its own");
}

}  // namespace headwise::attention
