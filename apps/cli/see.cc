#include "cli/see.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/output.h"
#include "cli/see_report.h"
#include "core/check.h"
#include "encoder/model_folder.h"
#include "io/refusal.h"

namespace headwise::cli {
namespace {

constexpr VerbText kText = {
    "see", "Shows what each attention head of a real model looks at",
    "Runs a BERT encoder, read from the folder that Hugging Face saved it in, on a\n"
    "text. Shows its tokens; for each layer and head how far away it looks, how\n"
    "sharply, and how much of it goes to [CLS], to [SEP], to the token itself, to the\n"
    "next and to the previous one; and the attention of one head as a heat map. Layers\n"
    "and heads count from 0. Of the folder only config.json, vocab.txt,\n"
    "tokenizer_config.json and model.safetensors are read.",
    "  headwise see --model DIR --text \"The cat sat on the mat.\"\n"
    "  headwise see --model DIR --text \"The cat sat.\" --layer 2 --head 5\n"
    "  headwise see --model DIR --text - --out weights.safetensors < letter.txt"};

constexpr std::size_t kMaxText = std::size_t{1} << 20;
constexpr std::size_t kMaxNumber = 1'000'000;  // of layers, heads, tokens in options

struct SeeOptions {
  RuntimeOptions runtime;
  std::string model, text, out, color = "auto";
  std::optional<std::size_t> layer, head;
  std::size_t from = 0;
  bool json = false;
};

// As std::cin would, but a folder there, say, is an error and not an empty text.
std::string read_standard_input(std::size_t max_bytes) {
  std::string text(max_bytes, '\0');
  std::size_t done = 0;
  while (done < max_bytes) {
    const ssize_t n = ::read(STDIN_FILENO, text.data() + done, max_bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw io::file_error("standard input", io::Refusal(io::errno_text(errno), "a text"));
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  text.resize(done);
  return text;
}

std::string read_text(const std::string& option) {
  const std::string text = option == "-" ? read_standard_input(kMaxText + 1) : option;
  if (text.size() > kMaxText)
    core::throw_argument("text", "more than " + std::to_string(kMaxText) + " bytes",
                         "at most as many");
  return text;
}

void check_below(const char* option, std::optional<std::size_t> found, std::size_t n) {
  if (found && *found >= n)
    throw UsageError(std::string(option) + ": found " + std::to_string(*found) +
                     ", expected 0 to " + std::to_string(n - 1));
}

Colour choose_colour(const std::string& color, const std::ostream& out) {
  const char* term = std::getenv("TERM");
  const char* colorterm = std::getenv("COLORTERM");
  if (color == "never") return Colour::none;
  if (color == "always") {
    const Colour known = terminal_colour(nullptr, term, colorterm);
    return known == Colour::none ? Colour::palette : known;
  }
  const auto* buffer = dynamic_cast<const DescriptorBuffer*>(out.rdbuf());
  if (buffer == nullptr || !buffer->is_terminal()) return Colour::none;
  return terminal_colour(std::getenv("NO_COLOR"), term, colorterm);
}

int see(const SeeOptions& options, std::ostream& out) {
  apply(options.runtime);
  if (!options.out.empty()) check_save_path(options.out);
  const encoder::ModelFolder folder = encoder::ModelFolder::open(options.model);
  check_below("--layer", options.layer, folder.config.n_layers);
  check_below("--head", options.head, folder.config.n_heads);

  SeeResult result;
  result.config = folder.config;
  result.text = folder.tokenizer.encode(read_text(options.text), folder.config.max_positions);
  const encoder::Encoder model = encoder::Encoder::load(folder.weights(), folder.config);
  result.parameter_count = model.parameter_count();
  result.output = model.run(result.text.ids);
  summarize(result, options.layer, options.head);

  if (!options.out.empty()) save_result(options.out, result);
  if (options.json) {
    print_report_json(out, result);
    return kSuccess;
  }
  HeatMapOptions map;
  map.colour = choose_colour(options.color, out);
  map.from = options.from;
  print_report(out, result, map);
  if (!options.out.empty())
    out << "\nAll weights, hidden states and the sentence embedding are in "
        << printable(options.out) << '\n';
  return kSuccess;
}

}  // namespace

void add_see(CLI::App& program, Action& action) {
  const auto options = std::make_shared<SeeOptions>();
  CLI::App* verb = add_verb(program, kText);
  verb->add_option("--model", options->model, "Folder of the model")
      ->required()
      ->check(file_name())
      ->type_name("DIR");
  verb->add_option("--text", options->text, "What to read; - reads standard input")
      ->required()
      ->type_name("TEXT");
  verb->add_option("--layer", options->layer, "Draw a head of this layer")
      ->transform(whole_number(0, kMaxNumber))
      ->type_name("N");
  verb->add_option("--head", options->head, "Draw this head (default: the most telling one)")
      ->transform(whole_number(0, kMaxNumber))
      ->type_name("N");
  verb->add_option("--from", options->from, "First token to draw, where not all fit (0)")
      ->transform(whole_number(0, kMaxNumber))
      ->type_name("N");
  verb->add_option("--out", options->out,
                   "Also write all weights, hidden states and the sentence embedding\n"
                   "to this .safetensors or .npz file")
      ->check(file_name())
      ->type_name("FILE");
  verb->add_option("--color", options->color, "auto (only on a terminal), always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->type_name("WHEN");
  verb->add_flag("--json", options->json, "Print JSON");
  add_runtime_options(*verb, options->runtime);
  verb->callback(
      [options, &action] { action = [options](std::ostream& out) { return see(*options, out); }; });
}

}  // namespace headwise::cli
