// Plain arithmetic on small matrices in double: what the lessons compare the library with.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "headwise/tensor.h"

namespace headwise::cli {

struct Grid {
  std::size_t rows = 0, cols = 0;
  std::vector<double> values;  // row after row

  Grid(std::size_t n_rows, std::size_t n_cols)
      : rows(n_rows), cols(n_cols), values(n_rows * n_cols, 0.0) {}
  double& at(std::size_t r, std::size_t c) { return values[r * cols + c]; }
  double at(std::size_t r, std::size_t c) const { return values[r * cols + c]; }
};

// An f32 or f64 tensor of rank 1 or 2, or matrix `index` of a larger one, counted over its leading
// dims.
Grid grid_of(const ConstTensorView& view, std::size_t index = 0);

Grid rows_of(const Grid& x, std::size_t begin, std::size_t end);
Grid columns_of(const Grid& x, std::size_t begin, std::size_t end);
Grid times(const Grid& a, const Grid& b);             // a b
Grid times_transposed(const Grid& a, const Grid& b);  // a b^T, as x W^T
void add_to_rows(Grid& x, const Grid& bias);          // bias has one row
void scale_by(Grid& x, double factor);
void softmax_rows(Grid& x);
double largest_difference(const Grid& a, const Grid& b);

// The first 8 rows and columns, for a person.
std::string to_text(const Grid& x, const char* number_format = "%9.4f");

}  // namespace headwise::cli
