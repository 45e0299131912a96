#include "cli/inspect.h"

#include <algorithm>
#include <memory>
#include <span>

#include "CLI/CLI.hpp"
#include "headwise/io.h"
#include "nlohmann/json.hpp"

namespace headwise::cli {
namespace {

constexpr VerbText kText = {
    "inspect", "Lists the tensors of a file and finds its attention blocks",
    "Lists every tensor of a .safetensors, .npy or .npz file (only the first 50, unless --all\n"
    "or --json asks for the rest) and finds attention blocks by their parameters' names. Of\n"
    "each it says how it is stored, its sizes and parameters, and whether they add up: q, k,\n"
    "v and output projections of d_model x d_model are 4 d_model^2 weights, for any number\n"
    "of heads, plus 4 d_model biases. Nothing but the file's header is read.",
    "  headwise inspect model.safetensors\n"
    "  headwise inspect --json weights.npz"};

constexpr std::size_t kFirst = 50;
constexpr std::size_t kNameLetters = 60;

struct InspectOptions {
  std::string path;
  bool all = false;
  bool json = false;
};

const char* name_of(TensorFile::Format format) {
  switch (format) {
    case TensorFile::Format::safetensors:
      return "safetensors";
    case TensorFile::Format::npy:
      return "npy";
    case TensorFile::Format::npz:
      return "npz";
  }
  return "unknown";
}

struct FormName {
  const char* id;    // for programs
  const char* text;  // for people
};

FormName name_of(AttentionBlock::Form form) {
  switch (form) {
    case AttentionBlock::Form::torch_packed:
      return {"torch_packed", "torch, packed in_proj_weight"};
    case AttentionBlock::Form::torch_separate:
      return {"torch_separate", "torch, q/k/v_proj_weight"};
    case AttentionBlock::Form::fused:
      return {"fused", "fused qkv_proj"};
    case AttentionBlock::Form::bert:
      return {"bert", "BERT query/key/value"};
  }
  return {"unknown", "unknown"};
}

std::string shape_text(std::span<const std::uint64_t> shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    if (text.size() > 80) return text + ", ...)";
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

// What a block of this form has to hold, term by term, so that the sum can be followed. In long
// double: sizes come from a file and their products may not fit 64 bits.
struct ExpectedCount {
  long double total = 0;
  std::string formula;

  void add(long double count, const std::string& term) {
    total += count;
    formula += (formula.empty() ? "" : " + ") + term;
  }
};

ExpectedCount expected_count(const AttentionBlock& block) {
  const std::size_t d = block.embed_dim, q = block.query_width, kv = block.kv_width;
  ExpectedCount expected;
  const auto add_product = [&](std::size_t a, std::size_t b) {
    expected.add(static_cast<long double>(a) * static_cast<long double>(b),
                 std::to_string(a) + "*" + std::to_string(b));
  };
  if (q == d && kv == d && block.kdim == d && block.vdim == d) {
    expected.add(4 * static_cast<long double>(d) * static_cast<long double>(d),
                 "4*" + std::to_string(d) + "^2");
  } else {
    add_product(q, d);
    add_product(kv, block.kdim);
    add_product(kv, block.vdim);
    add_product(d, q);
  }
  if (block.bias && q == d && kv == d) {
    add_product(4, d);
  } else if (block.bias) {
    add_product(1, q);
    add_product(2, kv);
    add_product(1, d);
  }
  if (block.bias_kv) add_product(2, kv);
  return expected;
}

bool adds_up(const AttentionBlock& block) {
  return block.problem.empty() &&
         expected_count(block).total == static_cast<long double>(block.parameter_count);
}

nlohmann::ordered_json block_json(const AttentionBlock& block) {
  return {{"prefix", block.prefix},
          {"form", name_of(block.form).id},
          {"embed_dim", block.embed_dim},
          {"kdim", block.kdim},
          {"vdim", block.vdim},
          {"bias", block.bias},
          {"bias_kv", block.bias_kv},
          {"query_width", block.query_width},
          {"kv_width", block.kv_width},
          {"parameter_count", block.parameter_count},
          {"formula", expected_count(block).formula},
          {"adds_up", adds_up(block)},
          {"problem", block.problem},
          {"tensors", block.tensors}};
}

// One entry a line, and never the whole document in memory: a file may list a million tensors.
template <typename T, typename ToJson>
void print_array(std::ostream& out, const char* name, const std::vector<T>& entries,
                 ToJson&& to_json) {
  out << "  \"" << name << "\": [";
  const char* separator = "\n    ";
  for (const T& entry : entries) {
    out << separator << json_line(to_json(entry));
    separator = ",\n    ";
  }
  out << (entries.empty() ? "]" : "\n  ]");
}

void print_as_json(std::ostream& out, const TensorFile& file,
                   const std::vector<AttentionBlock>& blocks) {
  out << "{\n  \"path\": " << json_line(file.path())
      << ",\n  \"format\": " << json_line(name_of(file.format()))
      << ",\n  \"tensor_count\": " << file.tensors().size()
      << ",\n  \"metadata\": " << json_line(file.metadata()) << ",\n";
  print_array(out, "tensors", file.tensors(), [](const TensorInfo& tensor) {
    return nlohmann::ordered_json{{"name", tensor.name},
                                  {"dtype", tensor.dtype},
                                  {"shape", tensor.shape},
                                  {"bytes", tensor.bytes}};
  });
  out << ",\n";
  print_array(out, "attention_blocks", blocks, block_json);
  out << "\n}\n";
}

std::string verdict(const AttentionBlock& block) {
  if (!block.problem.empty()) return "cannot be used: " + printable(block.problem, 200);
  return (adds_up(block) ? "yes: " : "no, not ") + expected_count(block).formula;
}

std::string count_of(std::size_t n, const std::string& noun) {
  return grouped(n) + " " + noun + (n == 1 ? "" : "s");
}

void print_tensors(std::ostream& out, const TensorFile& file, bool all) {
  const std::vector<TensorInfo>& tensors = file.tensors();
  const std::size_t shown = all ? tensors.size() : std::min(tensors.size(), kFirst);
  Table table({"name", "dtype", "shape"});
  for (const TensorInfo& tensor : std::span(tensors).first(shown))
    table.add({tensor.name.empty() ? "(no name)" : printable(tensor.name, kNameLetters),
               printable(tensor.dtype, 20), shape_text(tensor.shape)});
  if (shown > 0) table.print(out);
  if (shown < tensors.size())
    out << "  ... and " << grouped(tensors.size() - shown) << " more; --all or --json lists them\n";
}

void print_blocks(std::ostream& out, std::span<const AttentionBlock> blocks, bool all) {
  out << '\n' << count_of(blocks.size(), "attention block");
  if (blocks.empty()) {
    out << " found\n";
    return;
  }
  out << ":\n";
  const std::size_t shown = all ? blocks.size() : std::min(blocks.size(), kFirst);
  Table table({"prefix", "form", ">d_model", ">parameters", "adds up"});
  for (const AttentionBlock& block : blocks.first(shown))
    table.add({block.prefix.empty() ? "(none)" : printable(block.prefix, kNameLetters),
               name_of(block.form).text, std::to_string(block.embed_dim),
               grouped(block.parameter_count), verdict(block)});
  table.print(out);
  if (shown < blocks.size())
    out << "  ... and " << grouped(blocks.size() - shown) << " more; --all or --json lists them\n";
}

int inspect(const InspectOptions& options, std::ostream& out) {
  const TensorFile file = TensorFile::open(options.path);
  const std::vector<AttentionBlock> blocks = find_attention_blocks(file);
  if (options.json) {
    print_as_json(out, file, blocks);
    return kSuccess;
  }
  out << printable(options.path) << ": " << name_of(file.format()) << ", "
      << count_of(file.tensors().size(), "tensor") << '\n';
  print_tensors(out, file, options.all);
  print_blocks(out, blocks, options.all);
  return kSuccess;
}

}  // namespace

void add_inspect(CLI::App& program, Action& action) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* verb = add_verb(program, kText);
  verb->add_option("FILE", options->path, "The file to look into")
      ->required()
      ->check(file_name())
      ->type_name("");
  verb->add_flag("--all", options->all, "List all tensors and blocks, however many");
  verb->add_flag("--json", options->json, "Print JSON, with all tensors");
  verb->callback([options, &action] {
    action = [options](std::ostream& out) { return inspect(*options, out); };
  });
}

}  // namespace headwise::cli
