// Attention weights of one head as a picture of letters: rows are the tokens that look, columns
// the tokens looked at.
#pragma once

#include <cstddef>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

namespace headwise::cli {

enum class Colour { none, palette, full };  // no escapes; 256 colours; 24 bits

// What a terminal can show, from what its environment says (nullptr: not set). NO_COLOR wins.
Colour terminal_colour(const char* no_color, const char* term, const char* colorterm);

// The beginning of valid UTF-8 that fits so many columns.
std::string cut_to(std::string_view text, std::size_t columns);

struct HeatMapOptions {
  Colour colour = Colour::none;
  std::size_t columns = 80;  // of the terminal, 40 or more
  std::size_t from = 0;      // first token of the window, where not all fit
};

// Prints weights [T, T] as percent where they fit, else as tenths, else a window of them with a
// line that says which. Tokens are shown as they are: they have to be printable().
void print_heat_map(std::ostream& out, std::span<const std::string> tokens,
                    std::span<const float> weights, const HeatMapOptions& options);

}  // namespace headwise::cli
