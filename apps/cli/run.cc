#include "cli/run.h"

#include <filesystem>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/tensor_args.h"
#include "headwise/io.h"
#include "nlohmann/json.hpp"

namespace headwise::cli {
namespace {

constexpr VerbText kText = {
    "run", "Runs attention on tensors from files",
    "Computes torch.nn.MultiheadAttention's forward, with tables from a file (--weights) or\n"
    "drawn as torch draws them (--embed-dim, --seed), or with --sdpa torch's\n"
    "scaled_dot_product_attention. Inputs come from .npy, .npz or .safetensors files, as\n"
    "FILE or FILE:TENSOR; a missing key is the query and a missing value the key. Options\n"
    "have torch's names and meaning. Prints a summary, and writes all values with --out.",
    "  headwise run --num-heads 2 --embed-dim 8 --batch-first --query x.npy --out y.npz\n"
    "  headwise run --weights model.safetensors --prefix encoder.layer.0.attention \\\n"
    "    --num-heads 12 --batch-first --query hidden.npy --per-head --json\n"
    "  headwise run --sdpa --query q.npy --key k.npy --value v.npy --causal --out o.npy"};

constexpr std::uint64_t kMaxSize = 1u << 24;

// Which options belong to one of the two calls only.
struct Sides {
  std::vector<CLI::Option*> module, construct, sdpa;
};

CLI::Option* add_size(CLI::App& verb, const char* name, std::size_t& value, const char* text) {
  return verb.add_option(name, value, text)->transform(whole_number(1, kMaxSize))->type_name("N");
}

CLI::Option* add_size(CLI::App& verb, const char* name, std::optional<std::size_t>& value,
                      const char* text) {
  return verb.add_option(name, value, text)->transform(whole_number(1, kMaxSize))->type_name("N");
}

void add_inputs(CLI::App& verb, RunOptions& o, Sides& sides) {
  const auto add = [&](const char* name, std::string& value, const char* text) {
    return verb.add_option(name, value, text)
        ->check(file_name())
        ->type_name("FILE[:T]")
        ->group("Inputs");
  };
  add("--query", o.query, "Query")->required();
  add("--key", o.key, "Key (default: the query)");
  add("--value", o.value, "Value (default: the key)");
  add("--attn-mask", o.attn_mask, "Mask: boolean, or floating and added to the scores");
  sides.module.push_back(
      add("--key-padding-mask", o.key_padding_mask, "Mask of the keys of each sequence"));
  auto* keep =
      verb.add_flag("--keep", o.keep, "True in a mask: the key takes part (as torch's SDPA)");
  auto* ignore =
      verb.add_flag("--ignore", o.ignore, "True in a mask: it does not (as torch's module)");
  keep->excludes(ignore)->group("Inputs");
  ignore->group("Inputs");
  verb.add_option("--dtype", o.dtype, "f32, f64, bf16 or f16 (default: the query's)")
      ->check(dtype_name())
      ->type_name("NAME")
      ->group("Inputs");
}

void add_attention(CLI::App& verb, RunOptions& o, Sides& sides) {
  const char* group = "Attention";
  auto* causal = verb.add_flag("--causal", o.causal, "Query t sees keys 0 to t");
  auto* bottom_right = verb.add_flag("--bottom-right", o.bottom_right,
                                     "with --causal: the last query sees all keys");
  bottom_right->needs(causal);
  auto* scale = verb.add_option("--scale", o.scale, "Factor of the scores (1/sqrt(d_head))");
  auto* gqa = verb.add_flag("--gqa", o.gqa, "Fewer key and value heads than query heads");
  auto* dropout =
      verb.add_option("--dropout", o.module.dropout, "Probability of dropping a weight");
  auto* train = verb.add_flag("--train", o.train, "Training: dropout takes place");
  auto* strict =
      verb.add_flag("--strict", o.strict, "A --causal that contradicts the mask is an error");
  auto* need = verb.add_flag("--need-weights", o.need_weights, "Return the weights (SDPA)");
  auto* none = verb.add_flag("--no-weights", o.no_weights, "Return no weights (module)");
  auto* average = verb.add_flag("--average", o.average, "Weights averaged over the heads (SDPA)");
  auto* per_head = verb.add_flag("--per-head", o.per_head, "Weights of each head (module)");
  need->excludes(none);
  average->excludes(per_head);
  scale->type_name("X");
  dropout->type_name("P");
  for (CLI::Option* option :
       {causal, bottom_right, scale, gqa, dropout, train, strict, need, none, average, per_head})
    option->group(group);
  add_seed_option(verb, o.seed);
  sides.sdpa.insert(sides.sdpa.end(), {bottom_right, scale, gqa});
  sides.module.insert(sides.module.end(), {train, strict});
}

void add_module(CLI::App& verb, RunOptions& o, Sides& sides) {
  MultiheadAttentionOptions& m = o.module;
  auto* weights = verb.add_option("--weights", o.weights, "Tables: a .safetensors file");
  auto* prefix = verb.add_option("--prefix", o.prefix, "Which attention block of the file");
  weights->check(file_name())->type_name("FILE");
  prefix->needs(weights)->type_name("TEXT");
  sides.module.insert(
      sides.module.end(),
      {weights, prefix, add_size(verb, "--num-heads", m.num_heads, "Heads (always needed)"),
       verb.add_flag("--batch-first", m.batch_first, "(B, T, E), not (T, B, E)"),
       verb.add_flag("--add-zero-attn", m.add_zero_attn, "One more key and value, of zeros"),
       verb.add_option("--save-module", o.save_module, "Write the tables to a .safetensors file")
           ->check(file_name())
           ->type_name("FILE")});
  sides.construct = {
      add_size(verb, "--embed-dim", m.embed_dim, "Width of the model"),
      add_size(verb, "--kdim", m.kdim, "Width of the key (default: embed-dim)"),
      add_size(verb, "--vdim", m.vdim, "Width of the value (default: embed-dim)"),
      add_size(verb, "--num-kv-heads", m.num_kv_heads, "Key and value heads (default: num-heads)"),
      add_size(verb, "--head-dim", m.head_dim, "Width of a head (default: embed-dim/num-heads)"),
      verb.add_flag("--no-bias", o.no_bias, "No biases"),
      verb.add_flag("--add-bias-kv", m.add_bias_kv, "One more key and value, learned"),
      verb.add_flag("--fused", o.fused, "The bias-free module with one qkv_proj table")};
  for (CLI::Option* option : sides.construct) option->excludes(weights);
  sides.module.insert(sides.module.end(), sides.construct.begin(), sides.construct.end());
  for (CLI::Option* option : sides.module)
    if (option->get_group() == "Options") option->group("Module");
}

void add_outputs(CLI::App& verb, RunOptions& o) {
  verb.add_option("--out", o.out,
                  "Write the output; .npz and .safetensors take the weights too, as \"weights\"")
      ->check(file_name())
      ->type_name("FILE")
      ->group("Results");
  verb.add_option("--weights-out", o.weights_out, "Write the weights here")
      ->check(file_name())
      ->type_name("FILE")
      ->group("Results");
  verb.add_flag("--json", o.json, "Print the summary as JSON")->group("Results");
}

// However the two are spelled, through links too.
bool same_file(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return false;
  std::error_code none;
  const auto place = [&](const std::string& path) {
    const auto real =
        std::filesystem::weakly_canonical(std::filesystem::absolute(path, none), none);
    return real.empty() ? std::filesystem::path(path) : real;
  };
  return place(a) == place(b);
}

void check_outputs(const RunOptions& options) {
  if (!options.out.empty()) check_output_path("--out", options.out);
  if (!options.weights_out.empty()) check_output_path("--weights-out", options.weights_out);
  if (!options.weights_out.empty() && !options.wants_weights())
    throw UsageError("--weights-out: no weights are computed; expected --need-weights");
  if (!options.save_module.empty() && !options.save_module.ends_with(".safetensors"))
    throw UsageError("--save-module: found \"" + options.save_module +
                     "\", expected a name ending in .safetensors");
  if (same_file(options.out, options.weights_out))
    throw UsageError("--weights-out: found the file of --out, expected another one");
  if (same_file(options.out, options.save_module) ||
      same_file(options.weights_out, options.save_module))
    throw UsageError("--save-module: found the file of another output, expected one of its own");
}

void save(const RunOptions& options, const RunResult& result) {
  std::vector<NamedView> tensors{{"output", result.output.view()}};
  if (result.weights && options.weights_out.empty() && !holds_one_tensor(options.out))
    tensors.push_back({"weights", result.weights->view()});
  if (!options.out.empty()) save_tensors(options.out, tensors);
  if (!options.weights_out.empty()) {
    const NamedView weights{"weights", result.weights->view()};
    save_tensors(options.weights_out, {&weights, 1});
  }
}

int run(const RunOptions& options, std::ostream& out) {
  const double p = options.module.dropout;
  if (!(p >= 0 && p <= 1))  // false for NaN too
    throw UsageError("--dropout: found " + format(p) + ", expected a probability from 0 to 1");
  check_outputs(options);
  apply(options.runtime);
  const RunResult result = options.sdpa ? run_sdpa(options) : run_module(options);
  save(options, result);
  if (options.json) {
    nlohmann::ordered_json json = {{"output", summary_json(result.output)}};
    json["weights"] = result.weights ? summary_json(*result.weights) : nlohmann::ordered_json();
    print_json(out, json);
    return kSuccess;
  }
  out << "output   " << summary(result.output) << '\n';
  if (result.weights) out << "weights  " << summary(*result.weights) << '\n';
  for (const std::string& path : {options.out, options.weights_out, options.save_module})
    if (!path.empty()) out << "written to " << printable(path) << '\n';
  return kSuccess;
}

}  // namespace

DType compute_dtype(const RunOptions& options, DType of_query) {
  return options.dtype.empty() ? of_query : dtype_from_name(options.dtype);
}

Mask make_mask(const RunOptions& options, const ConstTensorView& view, bool true_keeps) {
  if (is_floating(view.dtype)) return Mask::bias(view);
  const bool keeps = options.keep || (true_keeps && !options.ignore);
  return keeps ? Mask::keep(view) : Mask::ignore(view);
}

void add_run(CLI::App& program, Action& action) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* verb = add_verb(program, kText);
  Sides sides;
  add_inputs(*verb, *options, sides);
  add_module(*verb, *options, sides);
  add_attention(*verb, *options, sides);
  auto* sdpa = verb->add_flag("--sdpa", options->sdpa, "Attention alone, without projections");
  sdpa->group("Attention");
  for (CLI::Option* option : sides.module) option->excludes(sdpa);
  for (CLI::Option* option : sides.sdpa) option->needs(sdpa);
  add_outputs(*verb, *options);
  add_runtime_options(*verb, options->runtime);
  verb->callback(
      [options, &action] { action = [options](std::ostream& out) { return run(*options, out); }; });
}

}  // namespace headwise::cli
