// Trains two layers of causal attention to copy: each sequence is a random word of kWord symbols,
// written again and again. To name the next symbol, a model has to find where the present one stood
// before and say what came after it: the "induction head" of Olsson et al. 2022. One layer marks
// each position with the symbol before it, the next one looks for that mark.
//
//   train_induction [SEED]    under a minute on 2 cores; exits 1 if the loss stays above kGoal
//
// The embeddings, the last projection and the loss are written out below; attention, its gradients
// and AdamW are headwise's.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "headwise/headwise.h"

namespace {

using headwise::Tensor;

constexpr std::size_t kSymbols = 16, kWidth = 48, kHeads = 4, kBatch = 16, kLength = 32;
constexpr std::size_t kShortest = 5, kLongest = 12;  // of a word
constexpr std::size_t kRows = kBatch * kLength;
constexpr int kSteps = 1500;
constexpr double kGoal = 0.1;  // nats a symbol, of the repetitions; a guess costs log(16) = 2.77

struct Batch {
  std::vector<std::size_t> symbols;  // [kBatch, kLength + 1]
  std::vector<std::size_t> words;    // [kBatch] how long
};

Batch draw(std::mt19937& engine) {
  Batch batch;
  for (std::size_t b = 0; b < kBatch; ++b) {
    const std::size_t n = std::uniform_int_distribution<std::size_t>(kShortest, kLongest)(engine);
    std::vector<std::size_t> word(kSymbols);
    for (std::size_t i = 0; i < kSymbols; ++i) word[i] = i;
    std::shuffle(word.begin(), word.end(), engine);  // no symbol twice
    for (std::size_t t = 0; t <= kLength; ++t) batch.symbols.push_back(word[t % n]);
    batch.words.push_back(n);
  }
  return batch;
}

Tensor random_table(std::size_t rows, std::size_t columns, double scale) {
  Tensor table = headwise::randn({rows, columns});
  for (std::size_t i = 0; i < table.size(); ++i)
    table.data<float>()[i] *= static_cast<float>(scale);
  return table;
}

// A table that is trained, with its gradient.
struct Table {
  explicit Table(Tensor first)
      : value(std::move(first)), gradient(Tensor::zeros(value.dtype(), value.shape())) {}
  headwise::TrainedParameter trained(const std::string& name) {
    return {name, value.view(), gradient};
  }
  float* row(std::size_t i) { return value.data<float>() + i * kWidth; }
  float* gradient_row(std::size_t i) { return gradient.data<float>() + i * kWidth; }

  Tensor value, gradient;
};

// y = x + attention(x), causal.
struct Layer {
  Layer()
      : module({.embed_dim = kWidth, .num_heads = kHeads, .batch_first = true}), gradients(module) {
    options.is_causal = true;
    options.average_attn_weights = false;
  }

  void forward(const Tensor& x, Tensor& y) {
    headwise::ForwardResult result = module.forward(x, x, x, options, saved);
    for (std::size_t i = 0; i < x.size(); ++i)
      y.data<float>()[i] = x.data<float>()[i] + result.output.data<float>()[i];
    weights = std::move(result.weights);
  }

  // dL/dy becomes dL/dx; parameters' gradients are added up.
  void backward(Tensor& d) {
    Tensor d_x(d.dtype(), d.shape());
    module.backward(saved, {d}, gradients, {d_x.view(), d_x.view(), d_x.view(), {}, {}});
    for (std::size_t i = 0; i < d.size(); ++i) d.data<float>()[i] += d_x.data<float>()[i];
  }

  headwise::MultiheadAttention module;
  headwise::ParameterGradients gradients;
  headwise::ForwardOptions options;
  headwise::SavedForward saved;
  std::optional<Tensor> weights;  // [kBatch, kHeads, kLength, kLength]
};

class Model {
 public:
  Model()
      : symbols_(random_table(kSymbols, kWidth, 0.3)),
        places_(random_table(kLength, kWidth, 0.3)),
        readout_(random_table(kSymbols, kWidth, 0.1)),
        x_(headwise::DType::f32, {kBatch, kLength, kWidth}),
        y_(headwise::DType::f32, {kBatch, kLength, kWidth}),
        z_(headwise::DType::f32, {kBatch, kLength, kWidth}),
        optimizer_({.learning_rate = 3e-3, .weight_decay = 0.01}) {}

  // One step of training; returns the mean loss of the symbols that could be known.
  double train(const Batch& batch) {
    zero();
    forward(batch);
    Tensor d(headwise::DType::f32, {kBatch, kLength, kWidth});
    const double loss = read_out(batch, d);
    second_.backward(d);
    first_.backward(d);
    for (std::size_t r = 0; r < kRows; ++r) {
      const float* from = d.data<float>() + r * kWidth;
      float* symbol = symbols_.gradient_row(symbol_at(batch, r));
      float* place = places_.gradient_row(r % kLength);
      for (std::size_t i = 0; i < kWidth; ++i) {
        symbol[i] += from[i];
        place[i] += from[i];
      }
    }
    step();
    return loss;
  }

  void forward(const Batch& batch) {
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t i = 0; i < kWidth; ++i)
        x_.data<float>()[r * kWidth + i] =
            symbols_.row(symbol_at(batch, r))[i] + places_.row(r % kLength)[i];
    first_.forward(x_, y_);
    second_.forward(y_, z_);
  }

  // Of the second layer.
  const Tensor& weights() const { return *second_.weights; }

 private:
  static std::size_t symbol_at(const Batch& batch, std::size_t row) {
    return batch.symbols[row / kLength * (kLength + 1) + row % kLength];
  }

  void zero() {
    first_.gradients.zero();
    second_.gradients.zero();
    for (Table* table : {&symbols_, &places_, &readout_})
      std::fill_n(table->gradient.data<float>(), table->gradient.size(), 0.0f);
  }

  // Scores of the next symbol, their cross entropy, and its gradient with respect to z.
  double read_out(const Batch& batch, Tensor& d) {
    std::size_t n_known = 0;
    for (std::size_t r = 0; r < kRows; ++r) n_known += is_known(batch, r) ? 1 : 0;
    double loss = 0;
    std::fill_n(d.data<float>(), d.size(), 0.0f);
    for (std::size_t r = 0; r < kRows; ++r) {
      if (!is_known(batch, r)) continue;
      const float* z = z_.data<float>() + r * kWidth;
      const std::size_t next = batch.symbols[r / kLength * (kLength + 1) + r % kLength + 1];
      double score[kSymbols], most = -1e30, sum = 0;
      for (std::size_t s = 0; s < kSymbols; ++s) {
        score[s] = 0;
        for (std::size_t i = 0; i < kWidth; ++i) score[s] += z[i] * readout_.row(s)[i];
        most = std::max(most, score[s]);
      }
      for (double& x : score) sum += std::exp(x - most);
      loss += most + std::log(sum) - score[next];
      for (std::size_t s = 0; s < kSymbols; ++s) {
        const double p = std::exp(score[s] - most) / sum - (s == next ? 1 : 0);
        const auto g = static_cast<float>(p / static_cast<double>(n_known));
        for (std::size_t i = 0; i < kWidth; ++i) {
          d.data<float>()[r * kWidth + i] += g * readout_.row(s)[i];
          readout_.gradient_row(s)[i] += g * z[i];
        }
      }
    }
    return loss / static_cast<double>(n_known);
  }

  // From the second time the word is written.
  static bool is_known(const Batch& batch, std::size_t row) {
    return row % kLength >= batch.words[row / kLength];
  }

  void step() {
    std::vector<headwise::NamedTensorView> all;
    for (Layer* layer : {&first_, &second_})
      for (const headwise::NamedTensorView& g : layer->gradients.views()) all.push_back(g);
    for (Table* table : {&symbols_, &places_, &readout_})
      all.push_back({"table", table->gradient.view()});
    headwise::clip_gradient_norm(all, 1.0);

    const headwise::TrainedParameter tables[] = {
        symbols_.trained("symbols"), places_.trained("places"), readout_.trained("readout")};
    optimizer_.step(tables);
    update(first_, "first.");
    update(second_, "second.");
  }

  void update(Layer& layer, const std::string& prefix) {
    layer.module.update([&](std::span<const headwise::NamedTensorView> values) {
      std::vector<headwise::TrainedParameter> parameters =
          headwise::trained(values, layer.gradients.views());
      for (headwise::TrainedParameter& p : parameters) p.name.insert(0, prefix);
      optimizer_.step(parameters);
    });
  }

  Table symbols_, places_, readout_;
  Layer first_, second_;
  Tensor x_, y_, z_;
  headwise::AdamW optimizer_;
};

// Which head of the second layer looks at what followed the symbol before, and how much.
void show(const Model& model, const Batch& batch) {
  const std::size_t word = batch.words[0];
  std::size_t best = 0;
  double most = -1;
  const auto weight = [&](std::size_t h, std::size_t t, std::size_t j) {
    return model.weights().data<float>()[(h * kLength + t) * kLength + j];
  };
  for (std::size_t h = 0; h < kHeads; ++h) {
    double share = 0;
    for (std::size_t t = word; t < kLength; ++t)
      for (std::size_t j = t + 1; j >= word;) {  // after each earlier place of the symbol
        j -= word;
        share += weight(h, t, j);
      }
    share /= static_cast<double>(kLength - word);
    std::printf("head %zu  %3.0f %% on what followed the same symbol before\n", h, 100 * share);
    if (share > most) most = share, best = h;
  }
  std::printf("\nhead %zu of the second layer, a word of %zu: row t is how query t looks back\n",
              best, word);
  for (std::size_t t = 0; t < kLength; ++t) {
    for (std::size_t j = 0; j <= t; ++j) {
      constexpr char kShades[] = " .:-=+*#%@";
      std::putchar(
          kShades[std::min<std::size_t>(9, static_cast<std::size_t>(10 * weight(best, t, j)))]);
    }
    std::putchar('\n');
  }
}

int train(unsigned seed) {
  headwise::manual_seed(seed);
  std::mt19937 engine(seed);
  Model model;
  const auto start = std::chrono::steady_clock::now();
  double loss = 0;
  for (int step = 1; step <= kSteps; ++step) {
    loss += (model.train(draw(engine)) - loss) / std::min(step, 50);
    if (step % 100 != 0) continue;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    std::printf("step %4d  loss %.3f  %.1f s\n", step, loss, passed.count());
    std::fflush(stdout);
    if (loss < kGoal / 2) break;
  }
  const Batch batch = draw(engine);
  model.forward(batch);
  std::putchar('\n');
  show(model, batch);
  if (loss < kGoal) return 0;
  std::fprintf(stderr, "the loss is %.3f, above %.3f\n", loss, kGoal);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(argc > 1 ? static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)) : 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
