// Cuts products into blocks of rows and panels, and runs them on all threads.
#include <algorithm>
#include <cmath>
#include <span>

#include "headwise/runtime.h"
#include "kernels/bf16/amx_matmul.h"
#include "kernels/matmul.h"
#include "runtime/parallel_for.h"
#include "runtime/scratch.h"

namespace headwise::kernels {
namespace {

// A block's rows of A stay in L2 (96 rows of 1024 floats are 384 KiB) while its panels pass.
constexpr std::size_t kBlockBytes = std::size_t{512} << 10;
constexpr std::size_t kBlockRows = 96, kMinBlockRows = 24;
// Multiply-adds, where few rows count as kFewRows: their time is that of reading W. A task below
// the first is not worth handing to another thread, products below the second are not worth waking
// one: about 3 and 5 microseconds.
constexpr double kMinTaskWork = 0x1p18, kWorthThreads = 0x1p19;
constexpr std::size_t kFewRows = 4;
constexpr std::size_t kTasksPerThread = 4;  // so that a late thread costs little

double work_of(const PackedWeights& w, std::size_t rows, std::size_t panels) {
  return static_cast<double>(std::max(rows, kFewRows)) * static_cast<double>(w.K()) *
         static_cast<double>(panels * w.panel_columns());
}

struct Cut {
  std::size_t n_row_blocks = 0, rows = 0;      // rows of a block
  std::size_t n_panel_groups = 0, panels = 0;  // panels of a group
  std::size_t tasks() const { return n_row_blocks * n_panel_groups; }
};

std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// AMX wants whole strips of rows, and many for each panel that it reads.
constexpr std::size_t kStripRows = 32, kMostStrips = 8;
constexpr double kAmxSpeed = 8;  // times that of f32

// Of equal height, up to one, or to a strip.
std::size_t rows_of_block(const MatmulArgs& product) {
  if (product.M <= kMinBlockRows) return product.M;
  if (is_amx_product(product)) {
    const std::size_t strips = ceil_div(product.M, kStripRows);
    return kStripRows * ceil_div(strips, ceil_div(strips, kMostStrips));
  }
  const std::size_t row_bytes =
      std::max<std::size_t>(1, product.w->K() * size_of(product.w->dtype()));
  const std::size_t most = std::clamp(kBlockBytes / row_bytes, kMinBlockRows, kBlockRows);
  return ceil_div(product.M, ceil_div(product.M, most));
}

// `wanted`: how many tasks all products together should be cut into.
Cut cut(const MatmulArgs& product, std::size_t total_panels, std::size_t wanted) {
  const PackedWeights& w = *product.w;
  if (product.M == 0 || w.N() == 0) return {};
  Cut c;
  c.rows = rows_of_block(product);
  c.n_row_blocks = ceil_div(product.M, c.rows);
  const std::size_t fair = ceil_div(total_panels * c.n_row_blocks, wanted);
  const double task_work = kMinTaskWork * (is_amx_product(product) ? kAmxSpeed : 1);
  const double least = std::min(task_work / work_of(w, c.rows, 1), 0x1p32);  // K may be 0
  c.panels = std::clamp<std::size_t>(std::max(fair, static_cast<std::size_t>(std::ceil(least))), 1,
                                     w.n_panels());
  c.panels = ceil_div(w.n_panels(), ceil_div(w.n_panels(), c.panels));  // of equal width
  c.n_panel_groups = ceil_div(w.n_panels(), c.panels);
  return c;
}

}  // namespace

void matmul(std::span<const MatmulArgs> products) {
  const auto n_threads = static_cast<std::size_t>(get_num_threads());
  std::size_t total_panels = 0, n_tasks = 0;
  double work = 0;
  for (const MatmulArgs& product : products) {
    total_panels += product.w->n_panels();
    work += work_of(*product.w, product.M, product.w->n_panels()) /
            (is_amx_product(product) ? kAmxSpeed : 1);
  }
  if (n_threads < 2 || work < kWorthThreads) {
    for (const MatmulArgs& product : products) {
      const std::size_t n = rows_of_block(product), panels = product.w->n_panels();
      for (std::size_t m0 = 0; m0 < product.M; m0 += n)
        matmul_block(product, {m0, std::min(n, product.M - m0), 0, panels});
    }
    return;
  }
  runtime::ScratchFrame scratch;
  Cut* cuts = scratch.take<Cut>(products.size());
  for (std::size_t i = 0; i < products.size(); ++i) {
    cuts[i] = cut(products[i], total_panels, n_threads * kTasksPerThread);
    n_tasks += cuts[i].tasks();
  }
  runtime::parallel_for(n_tasks, [&](std::size_t task) {
    std::size_t i = 0;
    for (; task >= cuts[i].tasks(); ++i) task -= cuts[i].tasks();
    const Cut& c = cuts[i];
    const MatmulArgs& product = products[i];
    MatmulBlock block;
    block.m0 = task / c.n_panel_groups * c.rows;
    block.panel0 = task % c.n_panel_groups * c.panels;
    block.rows = std::min(c.rows, product.M - std::min(product.M, block.m0));
    block.panels = std::min(c.panels, product.w->n_panels() - block.panel0);
    matmul_block(product, block);
  });
}

}  // namespace headwise::kernels
