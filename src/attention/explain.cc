#include <algorithm>

#include "attention/forward.h"
#include "attention/plan.h"
#include "attention/problem.h"
#include "headwise/plan.h"
#include "headwise/runtime.h"

namespace headwise {
namespace attention {
namespace {

// Checks want data behind a view that has elements; nothing reads it here.
ConstTensorView with_data(ConstTensorView view) {
  static const double somewhere = 0;
  if (view.data == nullptr) view.data = &somewhere;
  return view;
}

std::optional<Mask> with_data(const std::optional<Mask>& mask) {
  if (!mask) return mask;
  const ConstTensorView view = with_data(mask->view());
  switch (mask->kind()) {
    case Mask::Kind::keep:
      return Mask::keep(view);
    case Mask::Kind::ignore:
      return Mask::ignore(view);
    default:
      return Mask::bias(view);
  }
}

double bytes_of(const ConstTensorView& view) {
  double bytes = static_cast<double>(size_of(view.dtype));
  for (std::size_t n = 0; n < view.rank(); ++n)
    bytes *= view.strides[n] == 0 ? std::min<std::size_t>(view.shape[n], 1) : view.shape[n];
  return bytes;
}

}  // namespace
}  // namespace attention

AttentionPlan explain_attention(const ConstTensorView& q, const ConstTensorView& k,
                                const ConstTensorView& v, const AttentionOptions& options) {
  AttentionOptions checked = options;
  checked.mask = attention::with_data(options.mask);
  checked.second_mask = attention::with_data(options.second_mask);
  const attention::Problem p = attention::make_problem(
      attention::with_data(q), attention::with_data(k), attention::with_data(v), checked);
  const attention::Plan plan = attention::make_plan(p, {});

  AttentionPlan result;
  result.kernel = attention::name_of(plan.kernel);
  result.reason = plan.reason;
  result.n_tasks = plan.n_tasks;
  result.n_threads = plan.on_calling_thread
                         ? 1
                         : static_cast<int>(std::clamp<std::size_t>(
                               plan.n_tasks, 1, static_cast<std::size_t>(get_num_threads())));
  result.flops = 2.0 * static_cast<double>(p.d_head + p.d_v) * attention::n_visible_pairs(p);
  const ConstTensorView o(nullptr, p.dtype, p.o_shape);
  result.bytes = 0;
  for (const ConstTensorView& view : {q, k, v, o}) result.bytes += attention::bytes_of(view);
  for (const std::optional<Mask>* mask : {&options.mask, &options.second_mask})
    if (*mask) result.bytes += attention::bytes_of((*mask)->view());
  result.scratch_bytes =
      attention::scratch_bytes(p, plan, static_cast<std::size_t>(result.n_threads));
  return result;
}

}  // namespace headwise
