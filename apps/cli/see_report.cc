#include "cli/see_report.h"

#include <algorithm>
#include <cmath>

#include "cli/common.h"
#include "headwise/io.h"
#include "nlohmann/json.hpp"
#include "runtime/parallel_for.h"

namespace headwise::cli {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::string_view kSafetensors = ".safetensors", kNpz = ".npz";

// The first and the last token are the special ones; their like may also stand in the text.
TokenRoles roles_of(const std::vector<std::uint32_t>& ids) {
  TokenRoles roles;
  for (const auto id : ids) {
    roles.first.push_back(id == ids.front());
    roles.last.push_back(id == ids.back());
  }
  return roles;
}

std::vector<std::string> shown_tokens(const SeeResult& result) {
  std::vector<std::string> tokens;
  for (const auto& token : result.text.tokens) tokens.push_back(printable(token));
  return tokens;
}

void print_tokens(std::ostream& out, const std::vector<std::string>& tokens) {
  std::string line;
  std::size_t width = 0;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const std::string entry = "  " + std::to_string(t) + " " + tokens[t];
    if (width > 0 && width + display_width(entry) > kColumns) {
      out << line << '\n';
      line.clear();
      width = 0;
    }
    line += entry;
    width += display_width(entry);
  }
  out << line << "\n\n";
}

std::string percent(double share) { return format(100 * share, "%.0f%%"); }

// One word for a head that has one; else its strongest link between two words.
std::string summary_of(const HeadStats& s, const std::vector<std::string>& tokens) {
  constexpr std::size_t kLetters = 7;
  std::string word = behaviour(s, tokens.size());
  if (s.strongest == 0 || (word != "mixed" && word != "few tokens")) return word;
  return cut_to(tokens[s.strongest_from], kLetters) + ">" +
         cut_to(tokens[s.strongest_to], kLetters) + " " + percent(s.strongest);
}

void print_heads(std::ostream& out, const SeeResult& result,
                 const std::vector<std::string>& tokens) {
  Table table({">layer", ">head", ">distance", ">bits", ">[CLS]", ">[SEP]", ">self", ">next",
               ">prev", "mostly on"});
  for (std::size_t i = 0; i < result.stats.size(); ++i) {
    const HeadStats& s = result.stats[i];
    table.add({std::to_string(i / result.config.n_heads), std::to_string(i % result.config.n_heads),
               format(s.mean_distance, "%.1f"), format(s.entropy, "%.2f"), percent(s.cls),
               percent(s.sep), percent(s.self), percent(s.next), percent(s.previous),
               summary_of(s, tokens)});
  }
  table.print(out);
  out << "  distance: mean number of tokens from the one that looks to the one looked at\n"
         "  bits: entropy; 0 is one token, "
      << format(std::log2(static_cast<double>(result.n_tokens())), "%.2f") << " all "
      << result.n_tokens()
      << " alike; shares: means over tokens\n"
         "  a>b: no single habit; the strongest link is from token a to token b\n\n";
}

bool ends_with_any(const std::string& path) {
  return path.ends_with(kSafetensors) || path.ends_with(kNpz);
}

}  // namespace

std::span<const float> SeeResult::weights(std::size_t layer_at, std::size_t head_at) const {
  const std::size_t size = n_tokens() * n_tokens();
  return output.weights.values<float>().subspan((layer_at * config.n_heads + head_at) * size, size);
}

void summarize(SeeResult& result, std::optional<std::size_t> layer,
               std::optional<std::size_t> head) {
  const std::size_t H = result.config.n_heads, n = result.config.n_layers * H;
  const TokenRoles roles = roles_of(result.text.ids);
  result.stats.resize(n);
  runtime::parallel_for(
      n, [&](std::size_t i) { result.stats[i] = head_stats(result.weights(i / H, i % H), roles); });

  std::vector<std::size_t> candidates;
  std::vector<HeadStats> stats;
  for (std::size_t i = 0; i < n; ++i) {
    if ((layer && i / H != *layer) || (head && i % H != *head)) continue;
    candidates.push_back(i);
    stats.push_back(result.stats[i]);
  }
  const std::size_t best = candidates[most_telling(stats, result.n_tokens())];
  result.layer = best / H;
  result.head = best % H;
  result.chosen = layer && head;
}

void print_report(std::ostream& out, const SeeResult& result, const HeatMapOptions& options) {
  const std::vector<std::string> tokens = shown_tokens(result);
  out << result.config.n_layers << " layers of " << result.config.n_heads << " heads, d_model "
      << result.config.d_model << ", " << grouped(result.parameter_count) << " parameters\n";
  out << result.n_tokens() << " tokens";
  if (result.text.n_found > result.n_tokens())
    out << "; the text has " << result.text.n_found
        << ", and the model takes no more: the rest is cut off";
  out << '\n';
  print_tokens(out, tokens);
  out << "What each head looks at (layers and heads count from 0)\n";
  print_heads(out, result, tokens);

  const std::size_t i = result.layer * result.config.n_heads + result.head;
  out << "Layer " << result.layer << ", head " << result.head << ": "
      << summary_of(result.stats[i], tokens)
      << (result.chosen ? "" : " (of these, it picks other words most decidedly)")
      << "\nEach row is a token and shows which tokens it looks at\n\n";
  print_heat_map(out, tokens, result.weights(result.layer, result.head), options);
}

void print_report_json(std::ostream& out, const SeeResult& result) {
  nlohmann::ordered_json json;
  const std::size_t H = result.config.n_heads, T = result.n_tokens();
  json["model"] = {{"layers", result.config.n_layers},
                   {"heads", H},
                   {"d_model", result.config.d_model},
                   {"parameters", result.parameter_count}};
  json["tokens"] = result.text.tokens;
  json["ids"] = result.text.ids;
  json["tokens_in_text"] = result.text.n_found;
  json["truncated"] = result.text.n_found > T;
  for (std::size_t i = 0; i < result.stats.size(); ++i) {
    const HeadStats& s = result.stats[i];
    json["heads"].push_back(
        {{"layer", i / H},
         {"head", i % H},
         {"mean_distance", s.mean_distance},
         {"entropy_bits", s.entropy},
         {"cls", s.cls},
         {"sep", s.sep},
         {"self", s.self},
         {"next", s.next},
         {"previous", s.previous},
         {"mostly_on", behaviour(s, T)},
         {"strongest_link",
          {{"from", s.strongest_from}, {"to", s.strongest_to}, {"weight", s.strongest}}}});
  }
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const auto weights = result.weights(result.layer, result.head);
  for (std::size_t t = 0; t < T; ++t)
    rows.push_back(std::vector<float>(weights.begin() + static_cast<std::ptrdiff_t>(t * T),
                                      weights.begin() + static_cast<std::ptrdiff_t>((t + 1) * T)));
  json["shown"] = {{"layer", result.layer}, {"head", result.head}, {"weights", std::move(rows)}};
  print_json(out, json);
}

void check_save_path(const std::string& path) {
  if (!ends_with_any(path))
    throw UsageError("--out: found \"" + path +
                     "\", expected a name that ends with .safetensors "
                     "or .npz");
}

void save_result(const std::string& path, const SeeResult& result) {
  const std::string tokens = nlohmann::json(result.text.tokens).dump();
  std::vector<std::int64_t> ids(result.text.ids.begin(), result.text.ids.end());
  std::vector<NamedView> tensors = {{"attention", result.output.weights.view()},
                                    {"hidden_states", result.output.hidden.view()},
                                    {"sentence_embedding", result.output.embedding.view()},
                                    {"ids", {ids.data(), {ids.size()}}}};
  if (path.ends_with(kSafetensors)) {
    save_safetensors(path, tensors, {{"tokens", tokens}});
    return;
  }
  tensors.push_back({"tokens", {tokens.data(), DType::u8, {tokens.size()}}});
  save_npz(path, tensors);
}

}  // namespace headwise::cli
