#include "cli/head_stats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace headwise::cli {
namespace {

constexpr double kDominant = 0.5;

double most_bits(std::size_t T) {
  return std::log2(static_cast<double>(std::max<std::size_t>(T, 2)));
}

}  // namespace

HeadStats head_stats(std::span<const float> weights, const TokenRoles& roles) {
  const std::size_t T = roles.first.size();
  HeadStats sum;
  for (std::size_t t = 0; t < T; ++t) {
    for (std::size_t j = 0; j < T; ++j) {
      const double p = weights[t * T + j];
      sum.mean_distance += p * std::abs(static_cast<double>(t) - static_cast<double>(j));
      if (p != 0) sum.entropy -= p * std::log2(p);  // NaN stays NaN
      if (roles.first[j]) sum.cls += p;
      if (roles.last[j]) sum.sep += p;
      if (j == t) sum.self += p;
      if (j == t + 1) sum.next += p;
      if (j + 1 == t) sum.previous += p;
      const bool special = roles.first[t] || roles.last[t] || roles.first[j] || roles.last[j];
      if (!special && j != t && p > sum.strongest) {
        sum.strongest = p;
        sum.strongest_from = t;
        sum.strongest_to = j;
      }
    }
  }
  const double rows = static_cast<double>(std::max<std::size_t>(T, 1));
  const double rows_with_neighbour = std::max(rows - 1, 1.0);
  for (double* x : {&sum.mean_distance, &sum.entropy, &sum.cls, &sum.sep, &sum.self}) *x /= rows;
  sum.next /= rows_with_neighbour;
  sum.previous /= rows_with_neighbour;
  return sum;
}

std::string behaviour(const HeadStats& s, std::size_t T) {
  const std::array<std::pair<double, const char*>, 5> shares = {{{s.sep, "[SEP]"},
                                                                 {s.cls, "[CLS]"},
                                                                 {s.self, "itself"},
                                                                 {s.next, "next token"},
                                                                 {s.previous, "previous token"}}};
  const auto best = std::max_element(
      shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  if (best->first >= kDominant) return best->second;
  if (s.self + s.next + s.previous >= kDominant) return "neighbours";
  const double bits = most_bits(T);
  if (s.entropy >= 0.9 * bits) return "all alike";
  if (s.entropy <= 0.5 * bits) return "few tokens";
  return "mixed";
}

std::size_t most_telling(std::span<const HeadStats> heads, std::size_t T) {
  const double bits = most_bits(T);
  const auto score = [&](const HeadStats& s) {
    return std::max(0.0, 1 - s.cls - s.sep - s.self - s.next - s.previous) * (1 - s.entropy / bits);
  };
  const auto best =
      std::max_element(heads.begin(), heads.end(),
                       [&](const HeadStats& a, const HeadStats& b) { return score(a) < score(b); });
  return static_cast<std::size_t>(best - heads.begin());
}

}  // namespace headwise::cli
