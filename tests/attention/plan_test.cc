#include "attention/plan.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decode/flash_decode.h"
#include "kernels/flash_forward.h"
#include "kernels/tiles.h"
#include "support/kernels.h"

namespace headwise::attention {
namespace {

Problem problem_of(std::size_t n_batch, std::size_t n_heads, std::size_t n_kv_heads,
                   std::size_t T_q) {
  Problem p;
  p.n_batch = n_batch;
  p.n_heads = n_heads;
  p.n_kv_heads = n_kv_heads;
  p.group = n_heads / n_kv_heads;
  p.T_q = T_q;
  p.T_k = 10;
  p.d_head = p.d_v = 8;
  return p;
}

TEST(Plan, EveryQueryBelongsToOneTask) {
  const test::ScopedKernel flash("flash");
  const std::size_t block = kernels::flash_forward_block(DType::f32);
  for (const std::size_t T_q :
       {std::size_t{0}, std::size_t{1}, block - 1, block, block + 1, 3 * block + 2})
    for (const bool causal : {false, true}) {
      Problem p = problem_of(2, 6, 2, T_q);
      if (causal) p.terms.diagonal = 0;
      const Plan plan = make_plan(p, {});
      EXPECT_EQ(plan.longest_first, causal);
      std::vector<int> seen(p.n_batch * p.n_heads * T_q, 0);
      for (std::size_t n = 0; n < plan.n_tasks; ++n) {
        const Task task = task_at(p, plan, n);
        ASSERT_GT(task.n_q, 0u);
        for (std::size_t t = task.t0; t < task.t0 + task.n_q; ++t)
          ++seen.at((task.b * p.n_heads + task.h) * T_q + t);
      }
      for (const int count : seen) ASSERT_EQ(count, 1);
    }
}

TEST(Plan, CausalBeginsWithTheLongestAndNeighboursShareKeys) {
  const test::ScopedKernel flash("flash");
  const std::size_t block = kernels::flash_forward_block(DType::f32);
  Problem p = problem_of(1, 6, 2, 4 * block);
  p.terms.diagonal = 0;
  const Plan plan = make_plan(p, {});
  for (std::size_t n = 1; n < plan.n_tasks; ++n) {
    const Task before = task_at(p, plan, n - 1), task = task_at(p, plan, n);
    EXPECT_GE(task.h / p.group, before.h / p.group);
    if (task.h / p.group == before.h / p.group) {
      EXPECT_LE(task.t0, before.t0);
    }
  }
}

TEST(Plan, DecodeTasksCoverRowsAndLeaves) {
  const test::ScopedKernel forced("decode");
  for (const std::size_t T_q : {0u, 1u, 5u, 33u, 65u})
    for (const std::size_t T_k : {0u, 1u, 512u, 513u, 8192u, 1000000u})
      for (const std::size_t d : {0u, 1u, 128u}) {
        Problem p = problem_of(2, 6, 2, T_q);
        p.T_k = T_k;
        p.d_head = p.d_v = d;
        float row = 0;
        Outputs out;
        out.row_max.data = &row;
        const Plan plan = make_plan(p, out);
        ASSERT_EQ(plan.kernel, Kernel::decode);
        const DecodeCut& cut = plan.decode;
        EXPECT_GE(cut.n_blocks * kernels::kMostDecodeRows, p.group * T_q);
        EXPECT_LT(cut.n_blocks * kernels::kMostDecodeRows,
                  p.group * T_q + kernels::kMostDecodeRows);
        EXPECT_EQ(cut.n_leaves & (cut.n_leaves - 1), 0u);
        EXPECT_GE(cut.n_leaves * cut.n_parts * kernels::kLeafK, T_k);
        EXPECT_LT((cut.n_parts - 1) * cut.n_leaves * kernels::kLeafK,
                  std::max<std::size_t>(T_k, 1));
        EXPECT_EQ(plan.n_tasks, 2 * 2 * cut.n_blocks * cut.n_parts);
        EXPECT_LE(plan.n_tasks, 1024u + 4 * cut.n_blocks);
      }
}

// With wide heads, the last few queries are a task of their own, which leaves no vector empty.
TEST(Plan, AFewQueriesLeftOverAreATail) {
  const test::ScopedKernel automatic("auto");
  for (const std::size_t T_q : {17u, 33u, 64u, 65u, 77u, 197u, 577u})
    for (const bool causal : {false, true}) {
      Problem p = problem_of(1, 2, 1, T_q);
      p.d_head = p.d_v = 128;
      if (causal) p.terms.diagonal = 0;
      const Plan plan = make_plan(p, {});
      EXPECT_EQ(plan.tail, T_q % 16 <= 12 ? T_q % 16 : 0) << T_q;
      std::size_t n_queries = 0, n_tails = 0;
      for (std::size_t n = 0; n < plan.n_tasks; ++n) {
        const Task task = task_at(p, plan, n);
        n_queries += task.n_q;
        n_tails += is_tail(p, plan, task);
        EXPECT_EQ(is_tail(p, plan, task), plan.tail != 0 && task.t0 + plan.tail == T_q);
      }
      EXPECT_EQ(n_queries, 2 * T_q);
      EXPECT_EQ(n_tails, plan.tail != 0 ? 2u : 0u);
    }
}

TEST(Plan, NothingToWriteIsNoTask) {
  Problem p = problem_of(1, 1, 1, 5);
  p.d_v = 0;
  EXPECT_EQ(make_plan(p, {}).n_tasks, 0u);
  float row = 0;
  Outputs out;
  out.row_max.data = &row;
  EXPECT_EQ(make_plan(p, out).n_tasks, 1u);
}

TEST(Plan, SmallWorkStaysOnTheCallingThread) {
  EXPECT_TRUE(make_plan(problem_of(1, 2, 2, 4), {}).on_calling_thread);
  Problem large = problem_of(8, 8, 8, 512);
  large.T_k = 512;
  EXPECT_FALSE(make_plan(large, {}).on_calling_thread);
}

}  // namespace
}  // namespace headwise::attention
