#include "attention/backward/broadcast_sum.h"

#include <algorithm>

#include "attention/heads.h"
#include "attention/tasks.h"
#include "core/convert.h"

namespace headwise::attention {
namespace {

// Rows of one task: enough work to be worth handing out.
constexpr std::size_t kRows = 64;

// One block of rows of the matrix at `offset`.
template <typename T>
void sum_rows(const Problem& p, const PlacedGradient& placed, std::ptrdiff_t offset,
              const Layout& own, std::size_t row0) {
  const std::size_t n_rows = std::min(kRows, placed.T - row0), n = n_rows * placed.width;
  runtime::ScratchFrame frame;
  T* sum = frame.take<T>(n);
  std::fill_n(sum, n, T{0});
  for (std::size_t b = 0; b < p.n_batch; ++b) {
    const Shape position = batch_position(p.batch, b);
    for (std::size_t h = 0; h < placed.heads; ++h) {
      if (offset_of(own, position, h) != offset) continue;
      const T* from =
          static_cast<const T*>(matrix_of(placed.output, position, h).data) + row0 * placed.width;
      for (std::size_t x = 0; x < n; ++x) sum[x] += from[x];
    }
  }
  const TensorView& to = placed.wanted;
  const Shape shape{n_rows, placed.width};
  const std::ptrdiff_t stride_t = to.strides.from_back(1), stride_i = to.strides.from_back(0);
  void* begin = element(to.data, to.dtype, offset + static_cast<std::ptrdiff_t>(row0) * stride_t);
  core::convert({sum, dtype_of_v<T>, shape, contiguous_strides(shape)},
                {begin, to.dtype, shape, {stride_t, stride_i}});
}

}  // namespace

PlacedGradient place_gradient(const Problem& p, const TensorView& wanted, const Output& checked,
                              std::size_t heads, runtime::ScratchFrame& frame) {
  PlacedGradient placed;
  if (checked.data == nullptr) return placed;
  placed.wanted = wanted;
  placed.output = checked;
  placed.heads = heads;
  placed.T = wanted.shape.from_back(1);
  placed.width = wanted.shape.from_back(0);
  const std::size_t n = p.n_batch * heads;
  placed.broadcast = places_of(wanted.shape, wanted.strides).n != n;
  if (!placed.broadcast) return placed;
  const std::size_t matrix = placed.T * placed.width;
  placed.output.dtype = p.row_dtype;
  placed.output.data = frame.take<std::byte>(n * matrix * size_of(p.row_dtype));
  placed.output.at.i = 1;
  placed.output.at.t = static_cast<std::ptrdiff_t>(placed.width);
  placed.output.at.h = static_cast<std::ptrdiff_t>(matrix);
  placed.output.at.batch = contiguous_strides(p.batch);
  for (std::ptrdiff_t& stride : placed.output.at.batch)
    stride *= static_cast<std::ptrdiff_t>(heads * matrix);
  return placed;
}

Places places_of(const Shape& shape, const Strides& strides) {
  Places places{1, shape.size() - std::min<std::size_t>(shape.size(), 2), &shape, &strides};
  for (std::size_t n = 0; n < places.n_leading; ++n) places.n *= shape[n];
  return places;
}

std::ptrdiff_t place_offset(const Places& places, std::size_t index) {
  std::ptrdiff_t offset = 0;
  for (std::size_t n = places.n_leading; n-- > 0;) {
    const std::size_t size = (*places.shape)[n];
    offset += static_cast<std::ptrdiff_t>(index % size) * (size == 1 ? 0 : (*places.strides)[n]);
    index /= size;
  }
  return offset;
}

void sum_broadcast(const Problem& p, const PlacedGradient& placed, bool on_calling_thread) {
  if (!placed.broadcast) return;
  const TensorView& to = placed.wanted;
  const Places places = places_of(to.shape, to.strides);
  const Layout own = broadcast_layout(to.shape, to.strides, kMatrixPerHead, p.o_shape);
  const std::size_t n_blocks = (placed.T + kRows - 1) / kRows;
  for_each_task(places.n * n_blocks, on_calling_thread, [&](std::size_t index) {
    const std::ptrdiff_t offset = place_offset(places, index / n_blocks);
    const std::size_t row0 = index % n_blocks * kRows;
    if (p.row_dtype == DType::f64)
      sum_rows<double>(p, placed, offset, own, row0);
    else
      sum_rows<float>(p, placed, offset, own, row0);
  });
}

}  // namespace headwise::attention
