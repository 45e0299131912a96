#include "cli/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "cli/common.h"
#include "encoder/unicode_text.h"

namespace headwise::cli {
namespace {

constexpr std::size_t kMaxLabel = 12;  // columns for a row's token
constexpr std::string_view kIndent = "  ";

std::string right(const std::string& text, std::size_t columns) {
  const std::size_t width = display_width(text);
  return std::string(columns > width ? columns - width : 0, ' ') + text;
}

// How the picture is laid out: which tokens, and how wide a cell is.
struct Layout {
  std::size_t begin = 0, end = 0;  // tokens shown
  std::size_t number = 1;          // columns of the largest token number
  std::size_t label = 1;           // columns of the widest token shown
  std::size_t cell = 1;

  std::size_t size() const { return end - begin; }
  bool percent() const { return cell >= 3; }
};

Layout make_layout(std::span<const std::string> tokens, const HeatMapOptions& options) {
  Layout layout;
  layout.number = std::to_string(std::max<std::size_t>(tokens.size(), 1) - 1).size();
  for (const auto& token : tokens)
    layout.label = std::max(layout.label, std::min(display_width(token), kMaxLabel));
  const std::size_t used = kIndent.size() + layout.number + 1 + layout.label + 1;
  const std::size_t room = std::max<std::size_t>(options.columns, 40) - used;
  const std::size_t n = std::min(tokens.size(), room);
  layout.begin = std::min(options.from, tokens.size() - n);
  layout.end = layout.begin + n;
  layout.cell = std::clamp<std::size_t>(room / std::max<std::size_t>(n, 1), 1, 4);
  return layout;
}

std::string cell_text(float weight, const Layout& layout) {
  const auto parts = [&](double steps) {
    return std::isfinite(weight) ? static_cast<int>(std::lround(weight * steps)) : -1;
  };
  if (layout.percent()) {
    const int percent = parts(100);
    return right(percent < 0 ? "?" : percent == 0 ? "." : std::to_string(percent), layout.cell);
  }
  const int tenths = parts(10);
  const char letter = tenths < 0    ? '?'
                      : tenths == 0 ? '.'
                      : tenths < 10 ? static_cast<char>('0' + tenths)
                                    : '#';
  return right(std::string(1, letter), layout.cell);
}

struct Rgb {
  int r, g, b;
};

// Dark violet to pale yellow, rising in lightness, so that it also reads without hue. The square
// root of the weight chooses: of 16 tokens looked at alike each has 6 %, which has to be seen.
constexpr std::array<Rgb, 5> kRamp = {
    {{20, 11, 53}, {101, 21, 110}, {188, 55, 84}, {249, 142, 9}, {252, 255, 164}}};
constexpr std::array<int, 8> kPalette = {16, 53, 89, 125, 161, 208, 214, 229};

std::string colour_start(float weight, Colour colour) {
  const double x = std::isfinite(weight) ? std::sqrt(std::clamp(weight, 0.0f, 1.0f)) : 0.0;
  const char* letters = x > 0.65 ? "\x1b[38;5;16m" : "\x1b[38;5;231m";
  if (colour == Colour::palette) {
    const auto i = static_cast<std::size_t>(std::lround(x * (kPalette.size() - 1)));
    return "\x1b[48;5;" + std::to_string(kPalette[i]) + "m" + letters;
  }
  const double at = x * (kRamp.size() - 1);
  const auto i = std::min(static_cast<std::size_t>(at), kRamp.size() - 2);
  const auto mix = [&](int low, int high) {
    return std::to_string(static_cast<int>(low + (high - low) * (at - static_cast<double>(i))));
  };
  const Rgb low = kRamp[i], high = kRamp[i + 1];
  return "\x1b[48;2;" + mix(low.r, high.r) + ";" + mix(low.g, high.g) + ";" + mix(low.b, high.b) +
         "m" + letters;
}

// Wide cells: the beginning of each token. Narrow ones: its number, written downwards.
void print_header(std::ostream& out, std::span<const std::string> tokens, const Layout& layout) {
  const std::string margin(kIndent.size() + layout.number + 1 + layout.label + 1, ' ');
  if (layout.percent()) {
    std::string line = margin;
    for (std::size_t j = layout.begin; j < layout.end; ++j) {
      const std::string_view token = tokens[j];
      const bool inside = token.size() > 2 && token.starts_with("##");
      line += right(cut_to(token.substr(inside ? 2 : 0), layout.cell - 1), layout.cell);
    }
    out << line << '\n';
    return;
  }
  const std::size_t shown = std::to_string(layout.end - 1).size();  // of a window's numbers
  for (std::size_t digit = layout.number - shown; digit < layout.number; ++digit) {
    std::string line = margin;
    for (std::size_t j = layout.begin; j < layout.end; ++j) {
      const std::string number = right(std::to_string(j), layout.number);
      line += right(number.substr(digit, 1), layout.cell);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

}  // namespace

std::string cut_to(std::string_view text, std::size_t columns) {
  std::string kept;
  for (const char32_t c : encoder::decode_utf8(text)) {
    std::string longer = kept;
    encoder::append_utf8(longer, c);
    if (display_width(longer) > columns) break;
    kept = std::move(longer);
  }
  return kept;
}

Colour terminal_colour(const char* no_color, const char* term, const char* colorterm) {
  if (no_color != nullptr && *no_color != '\0') return Colour::none;
  const std::string_view kind = term == nullptr ? "" : term;
  const std::string_view depth = colorterm == nullptr ? "" : colorterm;
  if (kind.empty() || kind == "dumb") return Colour::none;
  if (depth == "truecolor" || depth == "24bit") return Colour::full;
  return kind.find("256color") != std::string_view::npos ? Colour::palette : Colour::none;
}

void print_heat_map(std::ostream& out, std::span<const std::string> tokens,
                    std::span<const float> weights, const HeatMapOptions& options) {
  const std::size_t T = tokens.size();
  const Layout layout = make_layout(tokens, options);
  print_header(out, tokens, layout);
  for (std::size_t t = layout.begin; t < layout.end; ++t) {
    const std::string label = cut_to(tokens[t], layout.label);
    out << kIndent << right(std::to_string(t), layout.number) << ' ' << label
        << std::string(layout.label - display_width(label) + 1, ' ');
    for (std::size_t j = layout.begin; j < layout.end; ++j) {
      const float p = weights[t * T + j];
      if (options.colour != Colour::none) out << colour_start(p, options.colour);
      out << cell_text(p, layout);
    }
    out << (options.colour != Colour::none ? "\x1b[0m\n" : "\n");
  }
  out << kIndent
      << (layout.percent() ? "cells: percent of the row's attention, . below 0.5"
                           : "cells: tenths of the row's attention, . below 0.05, # from 0.95")
      << '\n';
  if (layout.size() < T)
    out << kIndent << "tokens " << layout.begin << " to " << layout.end - 1 << " of " << T
        << "; --from N moves the window, --out FILE writes all\n";
}

}  // namespace headwise::cli
