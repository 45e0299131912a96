// `headwise run --sdpa`: scaled_dot_product_attention on tensors from files.
#include "cli/run.h"
#include "cli/tensor_args.h"
#include "headwise/attention.h"

namespace headwise::cli {

RunResult run_sdpa(const RunOptions& options) {
  InputTensor q("query", options.query);
  InputTensor k("key", options.key.empty() ? options.query : options.key);
  InputTensor v("value", !options.value.empty() ? options.value
                         : options.key.empty()  ? options.query
                                                : options.key);
  const DType dtype = compute_dtype(options, q.view().dtype);
  for (InputTensor* input : {&q, &k, &v}) input->convert_to(dtype);

  AttentionOptions attention;
  attention.scale = options.scale;
  if (options.causal)
    attention.causal = options.bottom_right ? CausalAlign::bottom_right : CausalAlign::top_left;
  std::optional<InputTensor> mask;
  if (!options.attn_mask.empty()) {
    mask.emplace("attn_mask", options.attn_mask);
    mask->convert_mask_to(dtype);
    attention.mask = make_mask(options, mask->view(), true);
  }
  attention.dropout_p = options.module.dropout;
  attention.dropout_seed = options.seed;
  attention.enable_gqa = options.gqa;

  Shape shape = attention_output_shape(q.view(), k.view(), v.view(), attention);
  RunResult result{Tensor(dtype, shape), std::nullopt};
  AttentionExtras extras;
  if (options.wants_weights()) {
    const std::size_t rank = shape.size();
    shape[rank - 1] = k.view().shape.from_back(1);
    if (options.average && rank > 2) {  // without the heads' dim
      Shape averaged(shape.begin(), shape.begin() + (rank - 3));
      averaged.push_back(shape[rank - 2]);
      averaged.push_back(shape[rank - 1]);
      result.weights.emplace(dtype, averaged);
      extras.average_weights = result.weights->view();
    } else {
      result.weights.emplace(dtype, shape);
      extras.weights = result.weights->view();
    }
  }
  scaled_dot_product_attention(q.view(), k.view(), v.view(), attention, result.output.view(),
                               extras);
  return result;
}

}  // namespace headwise::cli
