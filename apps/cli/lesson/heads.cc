// What h heads are: slices of the same four tables, so their number costs nothing.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "CLI/CLI.hpp"
#include "cli/lesson/grid.h"
#include "cli/lesson/lesson.h"
#include "headwise/attention.h"
#include "headwise/multihead_attention.h"
#include "headwise/random.h"
#include "nlohmann/json.hpp"

namespace headwise::cli {
namespace {

constexpr VerbText kText = {
    "heads", "What several heads are, and why they cost no parameters",
    "Builds the module without biases for every number of heads that divides d_model and\n"
    "counts its parameters; then computes each head alone from its slice of the tables,\n"
    "concatenates them, multiplies by W^O, and compares with what the module gives.",
    "  headwise lesson heads\n"
    "  headwise lesson heads --d-model 12 --heads 3 --tokens 5"};

struct HeadsOptions {
  std::size_t d_model = 512, n_heads = 8, batch = 2, tokens = 16;
  std::uint64_t seed = 0;
  bool json = false;
};

struct HeadCount {
  std::size_t n_heads = 0, d_head = 0, parameters = 0;
};

struct HeadsResult {
  std::vector<HeadCount> counts;
  Shape input, output, weights;
  double largest = 0;                     // |output|
  double output_difference = 0;           // module against concatenated heads
  double weights_difference = 0;          // of each head's weights
  bool same_count = true, agrees = true;  // the checks
};

MultiheadAttention make_module(const HeadsOptions& options, std::size_t n_heads) {
  MultiheadAttentionOptions wanted;
  wanted.embed_dim = options.d_model;
  wanted.num_heads = n_heads;
  wanted.bias = false;
  wanted.batch_first = true;
  wanted.names = MultiheadAttentionOptions::Names::fused;
  return MultiheadAttention(wanted);
}

// One head of one batch entry, from its own rows of the fused table.
struct Head {
  Grid output, weights;
};

Head compute_head(const Grid& x, const Grid& table, std::size_t h, std::size_t d_head) {
  const std::size_t d_model = x.cols;
  const auto project = [&](std::size_t part) {  // 0: q, 1: k, 2: v
    const std::size_t begin = part * d_model + h * d_head;
    return times_transposed(x, rows_of(table, begin, begin + d_head));
  };
  Grid weights = times_transposed(project(0), project(1));
  scale_by(weights, 1.0 / std::sqrt(static_cast<double>(d_head)));
  softmax_rows(weights);
  return {times(weights, project(2)), weights};
}

void compare_with_slices(const HeadsOptions& options, HeadsResult& result) {
  const MultiheadAttention module = make_module(options, options.n_heads);
  const Tensor x = randn({options.batch, options.tokens, options.d_model});
  ForwardOptions per_head;
  per_head.average_attn_weights = false;
  const ForwardResult got = module.forward(x, x, x, per_head);
  result.input = x.shape();
  result.output = got.output.shape();
  result.weights = got.weights->shape();

  std::optional<Grid> table, out_table;
  for (const NamedView& parameter : module.parameters())
    (parameter.name.starts_with("out_proj") ? out_table : table) = grid_of(parameter.view);
  const std::size_t d_head = module.head_dim();
  for (std::size_t b = 0; b < options.batch; ++b) {
    const Grid x_b = grid_of(x, b);
    Grid concatenated(options.tokens, options.d_model);
    for (std::size_t h = 0; h < options.n_heads; ++h) {
      const Head head = compute_head(x_b, *table, h, d_head);
      for (std::size_t t = 0; t < options.tokens; ++t)
        for (std::size_t i = 0; i < d_head; ++i)
          concatenated.at(t, h * d_head + i) = head.output.at(t, i);
      result.weights_difference = std::max(
          result.weights_difference,
          largest_difference(grid_of(*got.weights, b * options.n_heads + h), head.weights));
    }
    const Grid output = times_transposed(concatenated, *out_table);
    for (double value : output.values) result.largest = std::max(result.largest, std::abs(value));
    result.output_difference =
        std::max(result.output_difference, largest_difference(grid_of(got.output, b), output));
  }
}

HeadsResult compute(const HeadsOptions& options) {
  manual_seed(options.seed);
  HeadsResult result;
  for (std::size_t n_heads = 1; n_heads <= options.d_model; ++n_heads) {
    if (options.d_model % n_heads != 0) continue;
    const MultiheadAttention module = make_module(options, n_heads);
    result.counts.push_back({n_heads, module.head_dim(), module.parameter_count()});
    result.same_count &= module.parameter_count() == 4 * options.d_model * options.d_model;
  }
  manual_seed(options.seed);
  compare_with_slices(options, result);
  // f32 sums of d_model terms: far above their rounding, far below what a wrong slice gives.
  const double bound = 1e-5 * std::max(1.0, result.largest);
  result.agrees = result.output_difference <= bound && result.weights_difference <= 1e-5;
  return result;
}

void print_text(const HeadsOptions& options, const HeadsResult& result, std::ostream& out) {
  const std::string d = std::to_string(options.d_model);
  out << "head_i = softmax(Q_i K_i^T / sqrt(d_k)) V_i\n"
         "  with Q_i = x W_i^Q, K_i = x W_i^K, V_i = x W_i^V\n"
         "MultiHead(x) = concat(head_1, ..., head_h) W^O\n\n"
         "A head's tables are d_model x d_k, with d_k = d_model / h: more heads, narrower ones.\n"
      << "Parameters of modules without biases, d_model = " << d << ":\n\n";
  Table table({">h", ">d_k", ">one head, 3 d_model d_k", ">W^O", ">all", ""});
  const std::size_t expected = 4 * options.d_model * options.d_model;
  for (const HeadCount& count : result.counts)
    table.add({std::to_string(count.n_heads), std::to_string(count.d_head),
               grouped(3 * options.d_model * count.d_head),
               grouped(options.d_model * options.d_model), grouped(count.parameters),
               count.parameters == expected ? "= 4 d_model^2" : "differs from 4 d_model^2"});
  table.print(out);
  out << "\nWith h = " << options.n_heads << " the shapes are\n"
      << "  x        " << to_string(result.input) << "   batch, tokens, d_model\n"
      << "  output   " << to_string(result.output) << '\n'
      << "  weights  " << to_string(result.weights) << "   batch, h, T_q, T_k\n\n"
      << "Each head computed alone in double, from rows i d_k ... (i+1) d_k of W^Q, W^K and W^V,\n"
         "then concatenated and multiplied by W^O, against the module in f32:\n"
      << "  largest difference of the weights  " << format(result.weights_difference, "%.1e")
      << '\n'
      << "  largest difference of the output   " << format(result.output_difference, "%.1e")
      << "   (largest value " << format(result.largest, "%.3f") << ")\n"
      << (result.same_count && result.agrees ? "So a head is a slice, and h costs nothing.\n"
                                             : "They do not agree: this is a fault.\n");
}

void print_as_json(const HeadsOptions& options, const HeadsResult& result, std::ostream& out) {
  auto counts = nlohmann::ordered_json::array();
  for (const HeadCount& count : result.counts)
    counts.push_back({{"num_heads", count.n_heads},
                      {"head_dim", count.d_head},
                      {"parameters", count.parameters}});
  const auto dims = [](const Shape& shape) {
    return std::vector<std::size_t>(shape.begin(), shape.end());
  };
  print_json(out, {{"d_model", options.d_model},
                   {"counts", counts},
                   {"num_heads", options.n_heads},
                   {"input_shape", dims(result.input)},
                   {"output_shape", dims(result.output)},
                   {"weights_shape", dims(result.weights)},
                   {"output_difference", result.output_difference},
                   {"weights_difference", result.weights_difference},
                   {"agrees", result.same_count && result.agrees}});
}

int lesson_heads(const HeadsOptions& options, std::ostream& out) {
  const HeadsResult result = from_command_line([&] { return compute(options); });
  if (options.json)
    print_as_json(options, result, out);
  else
    print_text(options, result, out);
  return result.same_count && result.agrees ? kSuccess : kCheckFailed;
}

}  // namespace

void add_lesson_heads(CLI::App& lesson, Action& action) {
  auto options = std::make_shared<HeadsOptions>();
  CLI::App* verb = add_verb(lesson, kText);
  const auto add_size = [&](const char* name, std::size_t& value, std::size_t high,
                            const char* description) {
    verb->add_option(name, value, description)->transform(whole_number(1, high))->type_name("N");
  };
  add_size("--d-model", options->d_model, 1024, "Width of the model (512)");
  add_size("--heads", options->n_heads, 1024, "Heads to compute one by one (8)");
  add_size("--batch", options->batch, 8, "Sequences (2)");
  add_size("--tokens", options->tokens, 64, "Tokens in each (16)");
  add_seed_option(*verb, options->seed);
  verb->add_flag("--json", options->json, "Print the computed numbers as JSON");
  verb->callback([options, &action] {
    action = [options](std::ostream& out) { return lesson_heads(*options, out); };
  });
}

}  // namespace headwise::cli
