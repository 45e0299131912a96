// What shapes a call accepts, and what they come to. Wrong calls: wrong_calls_test.cc.
#include "attention/problem.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace headwise::attention {
namespace {

struct Accepted {
  Shape q, k, v, o;
  std::size_t n_heads, n_kv_heads, group;
};

Problem problem_of(const Accepted& row, const AttentionOptions& options = {}) {
  static float memory[4096];
  return make_problem({memory, row.q}, {memory, row.k}, {memory, row.v}, options);
}

TEST(Problem, ShapesBroadcastAsInTorch) {
  const Accepted rows[] = {
      // rank 2: one head without a dim
      {{3, 4}, {5, 4}, {5, 6}, {3, 6}, 1, 1, 1},
      {{2, 3, 4}, {2, 5, 4}, {2, 5, 6}, {2, 3, 6}, 2, 2, 1},
      {{7, 2, 3, 4}, {7, 2, 5, 4}, {7, 2, 5, 6}, {7, 2, 3, 6}, 2, 2, 1},
      {{2, 7, 2, 3, 4}, {2, 7, 2, 5, 4}, {2, 7, 2, 5, 6}, {2, 7, 2, 3, 6}, 2, 2, 1},
      // missing and single leading dims
      {{7, 2, 3, 4}, {5, 4}, {5, 6}, {7, 2, 3, 6}, 2, 1, 2},
      {{3, 4}, {7, 2, 5, 4}, {5, 6}, {7, 2, 3, 6}, 2, 2, 1},
      {{3, 4}, {5, 4}, {7, 2, 5, 6}, {7, 2, 3, 6}, 2, 2, 1},
      {{7, 1, 2, 3, 4}, {1, 3, 2, 5, 4}, {3, 2, 5, 6}, {7, 3, 2, 3, 6}, 2, 2, 1},
      {{1, 2, 3, 4}, {7, 2, 5, 4}, {1, 2, 5, 6}, {7, 2, 3, 6}, 2, 2, 1},
      // a single head broadcasts either way, in k alone and in v alone
      {{7, 1, 3, 4}, {7, 2, 5, 4}, {7, 2, 5, 6}, {7, 2, 3, 6}, 2, 2, 1},
      {{7, 2, 3, 4}, {7, 1, 5, 4}, {7, 2, 5, 6}, {7, 2, 3, 6}, 2, 2, 1},
      {{7, 4, 3, 4}, {7, 2, 5, 4}, {7, 1, 5, 6}, {7, 4, 3, 6}, 4, 2, 2},
      // groups
      {{7, 6, 3, 4}, {7, 2, 5, 4}, {7, 2, 5, 6}, {7, 6, 3, 6}, 6, 2, 3},
      {{6, 3, 4}, {1, 5, 4}, {1, 5, 6}, {6, 3, 6}, 6, 1, 6},
      // nothing
      {{0, 2, 3, 4}, {0, 2, 5, 4}, {0, 2, 5, 6}, {0, 2, 3, 6}, 2, 2, 1},
      {{0, 2, 3, 4}, {1, 2, 5, 4}, {1, 2, 5, 6}, {0, 2, 3, 6}, 2, 2, 1},
      {{7, 0, 3, 4}, {7, 0, 5, 4}, {7, 0, 5, 6}, {7, 0, 3, 6}, 0, 0, 1},
      {{7, 0, 3, 4}, {7, 1, 5, 4}, {7, 1, 5, 6}, {7, 0, 3, 6}, 0, 1, 1},
      {{7, 2, 0, 4}, {7, 2, 5, 4}, {7, 2, 5, 6}, {7, 2, 0, 6}, 2, 2, 1},
      {{7, 2, 3, 4}, {7, 2, 0, 4}, {7, 2, 0, 6}, {7, 2, 3, 6}, 2, 2, 1},
      {{7, 2, 3, 0}, {7, 2, 5, 0}, {7, 2, 5, 6}, {7, 2, 3, 6}, 2, 2, 1},
      {{7, 2, 3, 4}, {7, 2, 5, 4}, {7, 2, 5, 0}, {7, 2, 3, 0}, 2, 2, 1},
  };
  for (const Accepted& row : rows) {
    SCOPED_TRACE(to_string(row.q) + to_string(row.k) + to_string(row.v));
    const Problem p = problem_of(row);
    EXPECT_EQ(p.o_shape, row.o) << to_string(p.o_shape);
    EXPECT_EQ(p.n_heads, row.n_heads);
    EXPECT_EQ(p.n_kv_heads, row.n_kv_heads);
    EXPECT_EQ(p.group, row.group);
    std::size_t n_batch = 1;
    for (std::size_t n = 0; n + 3 < row.o.size(); ++n) n_batch *= row.o[n];
    EXPECT_EQ(p.n_batch, n_batch);
  }
}

TEST(Problem, BroadcastInputsAreReadInPlace) {
  const Problem p = problem_of({{7, 1, 2, 3, 4}, {1, 3, 2, 5, 4}, {2, 5, 6}, {}, 2, 2, 1});
  EXPECT_EQ(p.batch, (Shape{7, 3}));
  EXPECT_EQ(p.q.at.batch, (Strides{24, 0}));
  EXPECT_EQ(p.k.at.batch, (Strides{0, 40}));
  EXPECT_EQ(p.v.at.batch, (Strides{0, 0}));
  EXPECT_EQ(p.v.at.h, 30);
}

TEST(Problem, ScaleDefaultsToTheRootOfTheWidth) {
  const Accepted row{{3, 4}, {5, 4}, {5, 6}, {}, 1, 1, 1};
  EXPECT_EQ(problem_of(row).terms.scale, 0.5);
  AttentionOptions options;
  options.scale = 0.0;  // a value like any other (NM11)
  EXPECT_EQ(problem_of(row, options).terms.scale, 0.0);
  options.scale = -3.0;
  EXPECT_EQ(problem_of(row, options).terms.scale, -3.0);
  const Accepted no_width{{3, 0}, {5, 0}, {5, 6}, {}, 1, 1, 1};
  EXPECT_EQ(problem_of(no_width).terms.scale, 1.0);
}

TEST(Problem, DiagonalsOfBothAlignments) {
  const Accepted row{{3, 4}, {5, 4}, {5, 6}, {}, 1, 1, 1};
  EXPECT_EQ(problem_of(row).terms.diagonal, kernels::kNoDiagonal);
  AttentionOptions options;
  options.causal = CausalAlign::top_left;
  EXPECT_EQ(problem_of(row, options).terms.diagonal, 0);
  options.causal = CausalAlign::bottom_right;
  EXPECT_EQ(problem_of(row, options).terms.diagonal, 2);
  options.n_always_visible = 4;
  EXPECT_EQ(problem_of(row, options).terms.diagonal, -2);
  EXPECT_EQ(problem_of(row, options).terms.n_maskable, 1u);
}

TEST(Problem, LengthsPast32BitsAreKept) {  // SH19
  float x = 0;
  constexpr std::size_t T_k = std::size_t{1} << 33;
  const ConstTensorView q(&x, DType::f32, {1, 1}), k(&x, DType::f32, {T_k, 1}, {0, 1});
  AttentionOptions options;
  options.causal = CausalAlign::bottom_right;
  const Problem p = make_problem(q, k, k, options);
  EXPECT_EQ(p.T_k, T_k);
  EXPECT_EQ(p.terms.diagonal, static_cast<std::ptrdiff_t>(T_k) - 1);
}

}  // namespace
}  // namespace headwise::attention
