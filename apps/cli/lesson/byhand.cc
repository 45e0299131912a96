// The module's arithmetic step by step, from the packed table to the output.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/lesson/grid.h"
#include "cli/lesson/lesson.h"
#include "headwise/multihead_attention.h"
#include "headwise/random.h"
#include "nlohmann/json.hpp"

namespace headwise::cli {
namespace {

constexpr VerbText kText = {
    "byhand", "The module's output, recomputed step by step",
    "Makes the module and the input that torch makes after manual_seed, cuts in_proj_weight\n"
    "into its thirds, does every step in plain arithmetic, and compares the result with the\n"
    "module's. The numbers are the ones that torch prints.",
    "  headwise lesson byhand\n"
    "  headwise lesson byhand --embed-dim 12 --heads 3 --tokens 5 --seed 1"};

struct ByhandOptions {
  std::size_t embed_dim = 8, n_heads = 2, batch = 2, tokens = 4;
  std::uint64_t seed = 0;
  bool x_first = false;
  bool json = false;
};

struct Step {
  std::string title;
  Grid values;
};

struct ByhandResult {
  Tensor x, output;
  Tensor weights;                    // averaged over heads, as torch's default
  Shape transposed;                  // of the output of the sequence-first module
  Shape in_proj;                     // of in_proj_weight
  std::vector<Step> steps;           // of the first sequence and the first head
  double difference = 0;             // module against steps
  double weights_difference = 0;     // the same for the averaged weights
  double transposed_difference = 0;  // sequence-first module against batch-first
};

using Parameters = std::map<std::string, Grid>;

MultiheadAttention make_module(const ByhandOptions& options, bool batch_first) {
  MultiheadAttentionOptions wanted;
  wanted.embed_dim = options.embed_dim;
  wanted.num_heads = options.n_heads;
  wanted.batch_first = batch_first;
  return MultiheadAttention(wanted);
}

// x W^T + b for one third of the packed table.
Grid project_third(const Grid& x, const Parameters& parameters, std::size_t third) {
  const std::size_t n = x.cols;
  Grid y = times_transposed(x, rows_of(parameters.at("in_proj_weight"), third * n, third * n + n));
  add_to_rows(y, columns_of(parameters.at("in_proj_bias"), third * n, third * n + n));
  return y;
}

struct Sequence {
  Grid output, average_weights;
};

// One sequence, every step; `steps` receives them, for the first head, when it is not null.
Sequence by_hand(const Grid& x, const Parameters& parameters, std::size_t n_heads,
                 std::vector<Step>* steps) {
  const std::size_t d_head = x.cols / n_heads;
  const Grid q = project_third(x, parameters, 0);
  const Grid k = project_third(x, parameters, 1);
  const Grid v = project_third(x, parameters, 2);
  const auto show = [&](const char* title, const Grid& values) {
    if (steps != nullptr) steps->push_back({title, values});
  };
  show("Q = x W_q^T + b_q          W_q: the first third of in_proj_weight's rows", q);
  show("K = x W_k^T + b_k          W_k: the second third", k);
  show("V = x W_v^T + b_v          W_v: the last third", v);
  Grid concatenated(x.rows, x.cols), average(x.rows, x.rows);
  for (std::size_t h = 0; h < n_heads; ++h) {
    const std::size_t begin = h * d_head, end = begin + d_head;
    Grid p = times_transposed(columns_of(q, begin, end), columns_of(k, begin, end));
    scale_by(p, 1.0 / std::sqrt(static_cast<double>(d_head)));
    if (h == 0)
      show("scores of head 1 = Q_1 K_1^T / sqrt(d_k)   Q_1: the first d_k columns of Q", p);
    softmax_rows(p);
    if (h == 0) show("weights of head 1 = softmax(scores)   every row sums to 1", p);
    const Grid head = times(p, columns_of(v, begin, end));
    if (h == 0) show("head 1 = weights V_1", head);
    for (std::size_t t = 0; t < x.rows; ++t)
      for (std::size_t i = 0; i < d_head; ++i) concatenated.at(t, begin + i) = head.at(t, i);
    for (std::size_t i = 0; i < p.values.size(); ++i)
      average.values[i] += p.values[i] / static_cast<double>(n_heads);
  }
  show("heads side by side: concat(head 1, ..., head h)", concatenated);
  Grid output = times_transposed(concatenated, parameters.at("out_proj.weight"));
  add_to_rows(output, parameters.at("out_proj.bias"));
  return {output, average};
}

// (B, T, E) seen as (T, B, E), and the other way round.
ConstTensorView swap_first_two(const Tensor& x) {
  ConstTensorView view = x.view();
  std::swap(view.shape[0], view.shape[1]);
  std::swap(view.strides[0], view.strides[1]);
  return view;
}

ByhandResult compute(const ByhandOptions& options) {
  const Shape shape = {options.batch, options.tokens, options.embed_dim};
  ByhandResult result;
  manual_seed(options.seed);
  if (options.x_first) result.x = randn(shape);
  const MultiheadAttention module = make_module(options, true);
  if (!options.x_first) result.x = randn(shape);
  ForwardResult got = module.forward(result.x, result.x, result.x);
  result.output = std::move(got.output);
  result.weights = std::move(*got.weights);

  Parameters parameters;
  for (const NamedView& parameter : module.parameters()) {
    parameters.emplace(parameter.name, grid_of(parameter.view));
    if (parameter.name == "in_proj_weight") result.in_proj = parameter.view.shape;
  }
  for (std::size_t b = 0; b < options.batch; ++b) {
    const Sequence hand = by_hand(grid_of(result.x, b), parameters, options.n_heads,
                                  b == 0 ? &result.steps : nullptr);
    result.difference =
        std::max(result.difference, largest_difference(grid_of(result.output, b), hand.output));
    result.weights_difference =
        std::max(result.weights_difference,
                 largest_difference(grid_of(result.weights, b), hand.average_weights));
  }

  MultiheadAttention sequence_first = make_module(options, false);
  sequence_first.load_state_dict(module.parameters());
  const Tensor x = Tensor::copy_of(swap_first_two(result.x));
  const Tensor y = sequence_first.forward(x, x, x).output;
  result.transposed = y.shape();
  const Tensor back = Tensor::copy_of(swap_first_two(y));
  for (std::size_t b = 0; b < options.batch; ++b)
    result.transposed_difference =
        std::max(result.transposed_difference,
                 largest_difference(grid_of(result.output, b), grid_of(back, b)));
  return result;
}

// Far above the rounding of f32, far below what a wrong step gives.
bool agrees(const ByhandResult& result) {
  constexpr double kBound = 1e-6;
  return result.difference <= kBound && result.weights_difference <= kBound &&
         result.transposed_difference == 0;
}

void print_text(const ByhandOptions& options, const ByhandResult& result, std::ostream& out) {
  out << "torch.manual_seed(" << options.seed << "); MultiheadAttention(" << options.embed_dim
      << ", " << options.n_heads << ", batch_first=True); x = torch.randn"
      << to_string(result.x.shape()) << "\n\n"
      << "in_proj_weight     " << to_string(result.in_proj) << "   W_q, W_k, W_v, one below the "
      << "other\noutput             " << to_string(result.output.shape()) << '\n'
      << "weights            " << to_string(result.weights.shape())
      << "   averaged over heads\nbatch_first=False  " << to_string(result.transposed)
      << "   the same values, sequence first\n\nThe first sequence, step by step:\n\n";
  out << "x\n" << to_text(grid_of(result.x, 0)) << '\n';
  for (const Step& step : result.steps) out << step.title << '\n' << to_text(step.values) << '\n';
  for (std::size_t b = 0; b < options.batch; ++b)
    out << "output of sequence " << b + 1 << (b == 0 ? " = concat W_o^T + b_o" : "") << '\n'
        << to_text(grid_of(result.output, b), "%10.6f") << '\n';
  out << "weights of sequence 1, averaged over heads\n"
      << to_text(grid_of(result.weights, 0), "%10.6f") << "\nlargest difference, module (f32) "
      << "against the steps (double):\n  output   " << format(result.difference, "%.1e")
      << "\n  weights  " << format(result.weights_difference, "%.1e")
      << "\nlargest difference, batch_first=False against batch_first=True:\n  output   "
      << format(result.transposed_difference, "%.1e") << '\n';
}

nlohmann::ordered_json tensor_json(const Tensor& tensor) {
  const auto values = tensor.values<float>();
  return {{"shape", std::vector<std::size_t>(tensor.shape().begin(), tensor.shape().end())},
          {"values", std::vector<float>(values.begin(), values.end())}};
}

int lesson_byhand(const ByhandOptions& options, std::ostream& out) {
  const ByhandResult result = from_command_line([&] { return compute(options); });
  const bool ok = agrees(result);
  if (options.json) {
    print_json(out, {{"seed", options.seed},
                     {"x", tensor_json(result.x)},
                     {"output", tensor_json(result.output)},
                     {"weights", tensor_json(result.weights)},
                     {"largest_difference", result.difference},
                     {"weights_difference", result.weights_difference},
                     {"batch_first_difference", result.transposed_difference},
                     {"agrees", ok}});
  } else {
    print_text(options, result, out);
    out << (ok ? "" : "They do not agree: this is a fault.\n");
  }
  return ok ? kSuccess : kCheckFailed;
}

}  // namespace

void add_lesson_byhand(CLI::App& lesson, Action& action) {
  auto options = std::make_shared<ByhandOptions>();
  CLI::App* verb = add_verb(lesson, kText);
  const auto add_size = [&](const char* name, std::size_t& value, std::size_t high,
                            const char* description) {
    verb->add_option(name, value, description)->transform(whole_number(1, high))->type_name("N");
  };
  add_size("--embed-dim", options->embed_dim, 256, "Width of the model (8)");
  add_size("--heads", options->n_heads, 256, "Heads (2)");
  add_size("--batch", options->batch, 64, "Sequences (2)");
  add_size("--tokens", options->tokens, 256, "Tokens in each (4)");
  add_seed_option(*verb, options->seed);
  verb->add_flag("--x-first", options->x_first, "Draw x before the module's tables, not after");
  verb->add_flag("--json", options->json, "Print the computed numbers as JSON");
  verb->callback([options, &action] {
    action = [options](std::ostream& out) { return lesson_byhand(*options, out); };
  });
}

}  // namespace headwise::cli
