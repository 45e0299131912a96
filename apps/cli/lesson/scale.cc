// Why scores are divided by sqrt(d_k): the variance of a dot product, and what a softmax of large
// scores does to learning.
#include <algorithm>
#include <cmath>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/lesson/grid.h"
#include "cli/lesson/lesson.h"
#include "headwise/attention.h"
#include "headwise/random.h"
#include "nlohmann/json.hpp"

namespace headwise::cli {
namespace {

constexpr VerbText kText = {
    "scale", "Why the scores are divided by sqrt(d_k)",
    "Draws queries and keys with variance 1 for several widths d_k, measures the variance of\n"
    "their dot products, and asks the library for the attention weights without and with the\n"
    "scale 1/sqrt(d_k). Unscaled, the softmax turns into a hard choice and passes no gradient.",
    "  headwise lesson scale\n"
    "  headwise lesson scale --d-k 1,10,100,1000 --keys 16 --seed 7"};

struct ScaleOptions {
  std::vector<std::size_t> d_k = {4, 16, 64, 256, 1024};
  std::size_t n_queries = 256;
  std::size_t n_keys = 64;
  std::uint64_t seed = 0;
  bool json = false;
};

struct Effect {
  double variance = 0;        // of the scores
  double largest_weight = 0;  // mean over queries
  double gradient = 0;        // mean over queries of the sum of dp_j/ds_j = p_j (1 - p_j)
};

struct ScaleRow {
  std::size_t d_k = 0;
  Effect raw, scaled;
};

double variance(const Grid& x) {
  double sum = 0, squares = 0;
  for (double value : x.values) sum += value;
  const double mean = sum / static_cast<double>(x.values.size());
  for (double value : x.values) squares += (value - mean) * (value - mean);
  return squares / static_cast<double>(x.values.size());
}

Effect measure(const Tensor& q, const Tensor& k, Grid scores, double scale) {
  AttentionOptions options;
  options.scale = scale;
  Tensor output(DType::f64, q.shape());
  Tensor weights(DType::f64, {q.shape()[0], k.shape()[0]});
  AttentionExtras extras;
  extras.weights = weights.view();
  scaled_dot_product_attention(q, k, k, options, output.view(), extras);

  scale_by(scores, scale);
  Effect effect;
  effect.variance = variance(scores);
  const Grid p = grid_of(weights);
  for (std::size_t t = 0; t < p.rows; ++t) {
    double largest = 0;
    for (std::size_t j = 0; j < p.cols; ++j) {
      largest = std::max(largest, p.at(t, j));
      effect.gradient += p.at(t, j) * (1 - p.at(t, j));
    }
    effect.largest_weight += largest;
  }
  effect.largest_weight /= static_cast<double>(p.rows);
  effect.gradient /= static_cast<double>(p.rows);
  return effect;
}

ScaleRow measure_width(std::size_t d_k, const ScaleOptions& options) {
  Generator generator(options.seed);
  const Tensor q = randn({options.n_queries, d_k}, generator, DType::f64);
  const Tensor k = randn({options.n_keys, d_k}, generator, DType::f64);
  const Grid scores = times_transposed(grid_of(q), grid_of(k));
  const double scale = 1.0 / std::sqrt(static_cast<double>(d_k));
  return {d_k, measure(q, k, scores, 1.0), measure(q, k, scores, scale)};
}

nlohmann::ordered_json json_of(const Effect& effect) {
  return {{"variance", effect.variance},
          {"largest_weight", effect.largest_weight},
          {"gradient", effect.gradient}};
}

void print_text(const ScaleOptions& options, const std::vector<ScaleRow>& rows, std::ostream& out) {
  out << "A score is a dot product of d_k terms: s = q.k = q_1 k_1 + ... + q_d k_d.\n"
         "If all q_i and k_i have mean 0 and variance 1, each term has variance 1, so\n"
         "  var(q.k) = d_k        and        var(q.k / sqrt(d_k)) = 1.\n\n"
      << "Measured on " << options.n_queries << " queries and " << options.n_keys
      << " keys drawn with seed " << options.seed << ", weights p = softmax(s):\n\n";
  Table table({">d_k", ">var(q.k)", ">scaled", ">largest p", ">scaled", ">gradient", ">scaled"});
  for (const ScaleRow& row : rows)
    table.add({std::to_string(row.d_k), format(row.raw.variance, "%.3f"),
               format(row.scaled.variance, "%.3f"), format(row.raw.largest_weight, "%.4f"),
               format(row.scaled.largest_weight, "%.4f"), format(row.raw.gradient, "%.6f"),
               format(row.scaled.gradient, "%.6f")});
  table.print(out);
  out << "\nlargest p: the weight of the favourite key, mean over the queries. Near 1 the softmax\n"
         "has become a hard choice.\n"
         "gradient: sum over the keys of dp_j/ds_j = p_j (1 - p_j), mean over the queries. What\n"
         "a training step can still change; with wide unscaled heads it dies, scaled it stays.\n";
}

int lesson_scale(const ScaleOptions& options, std::ostream& out) {
  std::vector<ScaleRow> rows;
  for (std::size_t d_k : options.d_k) rows.push_back(measure_width(d_k, options));
  if (!options.json) {
    print_text(options, rows, out);
    return kSuccess;
  }
  auto json = nlohmann::ordered_json::array();
  for (const ScaleRow& row : rows)
    json.push_back(
        {{"d_k", row.d_k}, {"unscaled", json_of(row.raw)}, {"scaled", json_of(row.scaled)}});
  print_json(out, {{"seed", options.seed}, {"widths", json}});
  return kSuccess;
}

}  // namespace

void add_lesson_scale(CLI::App& lesson, Action& action) {
  auto options = std::make_shared<ScaleOptions>();
  CLI::App* verb = add_verb(lesson, kText);
  verb->add_option("--d-k", options->d_k, "Widths of queries and keys (4,16,64,256,1024)")
      ->delimiter(',')
      ->transform(whole_number(1, 4096))
      ->type_name("N,...");
  verb->add_option("--queries", options->n_queries, "Queries to draw (256)")
      ->transform(whole_number(1, 1024))
      ->type_name("N");
  verb->add_option("--keys", options->n_keys, "Keys to draw (64)")
      ->transform(whole_number(2, 1024))
      ->type_name("N");
  add_seed_option(*verb, options->seed);
  verb->add_flag("--json", options->json, "Print the measured numbers as JSON");
  verb->callback([options, &action] {
    action = [options](std::ostream& out) { return lesson_scale(*options, out); };
  });
}

}  // namespace headwise::cli
