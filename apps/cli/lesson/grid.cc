#include "cli/lesson/grid.h"

#include <algorithm>
#include <cmath>

#include "cli/common.h"

namespace headwise::cli {

Grid grid_of(const ConstTensorView& view, std::size_t index) {
  const std::size_t rank = view.rank();
  std::ptrdiff_t begin = 0;
  for (std::size_t d = rank < 2 ? 0 : rank - 2; d-- > 0; index /= view.shape[d])
    begin += static_cast<std::ptrdiff_t>(index % view.shape[d]) * view.strides[d];
  Grid grid(rank < 2 ? 1 : view.shape[rank - 2], view.shape[rank - 1]);
  const std::ptrdiff_t down = rank < 2 ? 0 : view.strides[rank - 2];
  for (std::size_t r = 0; r < grid.rows; ++r)
    for (std::size_t c = 0; c < grid.cols; ++c) {
      const std::ptrdiff_t at = begin + static_cast<std::ptrdiff_t>(r) * down +
                                static_cast<std::ptrdiff_t>(c) * view.strides[rank - 1];
      grid.at(r, c) = view.dtype == DType::f64 ? static_cast<const double*>(view.data)[at]
                                               : double{static_cast<const float*>(view.data)[at]};
    }
  return grid;
}

Grid rows_of(const Grid& x, std::size_t begin, std::size_t end) {
  Grid y(end - begin, x.cols);
  for (std::size_t r = begin; r < end; ++r)
    for (std::size_t c = 0; c < x.cols; ++c) y.at(r - begin, c) = x.at(r, c);
  return y;
}

Grid columns_of(const Grid& x, std::size_t begin, std::size_t end) {
  Grid y(x.rows, end - begin);
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t c = begin; c < end; ++c) y.at(r, c - begin) = x.at(r, c);
  return y;
}

Grid times(const Grid& a, const Grid& b) {
  Grid y(a.rows, b.cols);
  for (std::size_t r = 0; r < a.rows; ++r)
    for (std::size_t i = 0; i < a.cols; ++i)
      for (std::size_t c = 0; c < b.cols; ++c) y.at(r, c) += a.at(r, i) * b.at(i, c);
  return y;
}

Grid times_transposed(const Grid& a, const Grid& b) {
  Grid y(a.rows, b.rows);
  for (std::size_t r = 0; r < a.rows; ++r)
    for (std::size_t c = 0; c < b.rows; ++c)
      for (std::size_t i = 0; i < a.cols; ++i) y.at(r, c) += a.at(r, i) * b.at(c, i);
  return y;
}

void add_to_rows(Grid& x, const Grid& bias) {
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t c = 0; c < x.cols; ++c) x.at(r, c) += bias.at(0, c);
}

void scale_by(Grid& x, double factor) {
  for (double& value : x.values) value *= factor;
}

void softmax_rows(Grid& x) {
  for (std::size_t r = 0; r < x.rows; ++r) {
    double m = x.at(r, 0), sum = 0;
    for (std::size_t c = 1; c < x.cols; ++c) m = std::max(m, x.at(r, c));
    for (std::size_t c = 0; c < x.cols; ++c) sum += x.at(r, c) = std::exp(x.at(r, c) - m);
    for (std::size_t c = 0; c < x.cols; ++c) x.at(r, c) /= sum;
  }
}

double largest_difference(const Grid& a, const Grid& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    const double difference = std::abs(a.values[i] - b.values[i]);
    if (!(difference <= largest)) largest = difference;  // NaN counts as largest
  }
  return largest;
}

std::string to_text(const Grid& x, const char* number_format) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t r = 0; r < std::min(x.rows, kShown); ++r) {
    for (std::size_t c = 0; c < std::min(x.cols, kShown); ++c)
      text += format(x.at(r, c), number_format);
    text += x.cols > kShown ? " ...\n" : "\n";
  }
  return x.rows > kShown ? text + "      ...\n" : text;
}

}  // namespace headwise::cli
