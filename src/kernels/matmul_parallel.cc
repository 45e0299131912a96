// Cuts products into blocks of rows and panels, and runs them on all threads.
#include <algorithm>
#include <span>

#include "headwise/runtime.h"
#include "kernels/matmul.h"
#include "runtime/parallel_for.h"
#include "runtime/scratch.h"

namespace headwise::kernels {
namespace {

// A block's rows of A stay in L2 (96 rows of 1024 floats are 384 KiB) while its panels pass.
constexpr std::size_t kBlockBytes = std::size_t{512} << 10;
constexpr std::size_t kBlockRows = 96, kMinBlockRows = 24;
// A task below this is not worth handing to another thread: about 5 microseconds.
constexpr std::size_t kMinTaskFlops = std::size_t{1} << 20;
constexpr std::size_t kTasksPerThread = 4;  // so that a late thread costs little

struct Cut {
  std::size_t n_row_blocks = 0, rows = 0;      // rows of a block
  std::size_t n_panel_groups = 0, panels = 0;  // panels of a group
  std::size_t tasks() const { return n_row_blocks * n_panel_groups; }
};

std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

Cut cut(const MatmulArgs& product, std::size_t total_panels, std::size_t n_threads) {
  const PackedWeights& w = *product.w;
  if (product.M == 0 || w.N() == 0) return {};
  const std::size_t row_bytes = std::max<std::size_t>(1, w.K() * size_of(w.dtype()));
  const std::size_t most = std::clamp(kBlockBytes / row_bytes, kMinBlockRows, kBlockRows);
  Cut c;
  c.n_row_blocks = ceil_div(product.M, most);
  c.rows = ceil_div(product.M, c.n_row_blocks);
  const std::size_t panel_flops = std::max<std::size_t>(1, 2 * c.rows * w.K() * w.panel_columns());
  const std::size_t wanted = n_threads > 1 ? n_threads * kTasksPerThread : 1;
  const std::size_t fair = ceil_div(total_panels * c.n_row_blocks, wanted);
  c.panels = std::clamp<std::size_t>(std::max(fair, ceil_div(kMinTaskFlops, panel_flops)), 1,
                                     w.n_panels());
  c.n_panel_groups = ceil_div(w.n_panels(), c.panels);
  return c;
}

}  // namespace

void matmul(std::span<const MatmulArgs> products) {
  const auto n_threads = static_cast<std::size_t>(get_num_threads());
  std::size_t total_panels = 0, n_tasks = 0;
  for (const MatmulArgs& product : products) total_panels += product.w->n_panels();
  runtime::ScratchFrame scratch;
  Cut* cuts = scratch.take<Cut>(products.size());
  for (std::size_t i = 0; i < products.size(); ++i) {
    cuts[i] = cut(products[i], total_panels, n_threads);
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
