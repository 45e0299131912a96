// What an attention head does, in a few numbers and a word, from its weights.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace headwise::cli {

// Which tokens are the special ones; lengths are T.
struct TokenRoles {
  std::vector<bool> first;  // [CLS]
  std::vector<bool> last;   // [SEP]
};

// Means over the rows (the tokens that look). Shares are of a row's attention, 0 to 1; the share on
// the next or previous token is a mean over the rows that have one.
struct HeadStats {
  double mean_distance = 0;  // in tokens, between the one that looks and the one looked at
  double entropy = 0;        // in bits: 0 for one key, log2(T) for all keys alike
  double cls = 0, sep = 0, self = 0, next = 0, previous = 0;
  // The largest weight between two different tokens that are neither [CLS] nor [SEP].
  double strongest = 0;
  std::size_t strongest_from = 0, strongest_to = 0;
};

// weights: [T, T], rows are queries.
HeadStats head_stats(std::span<const float> weights, const TokenRoles& roles);

// The dominant behaviour: "[CLS]", "[SEP]", "itself", "next token", "previous token" when it takes
// half of the attention; else "neighbours", "few tokens", "all alike" or "mixed".
std::string behaviour(const HeadStats& stats, std::size_t T);

// The head worth a first look: the one that most decidedly picks tokens other than [CLS], [SEP],
// itself and its neighbours (share of the attention on those times how far the entropy lies below
// log2(T)). Ties go to the earlier one.
std::size_t most_telling(std::span<const HeadStats> heads, std::size_t T);

}  // namespace headwise::cli
