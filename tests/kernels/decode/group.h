// Query heads that share keys and values, and flash_decode on them cut in any way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/decode/flash_decode.h"
#include "kernels/head_problem.h"
#include "kernels/tiles.h"

namespace headwise::test {

// Keys and values are those of the first head.
struct Group {
  Group(DType dtype, std::size_t n_heads, HeadProblem::Sizes s, std::size_t pad = 3,
        std::size_t step = 1) {
    for (std::size_t h = 0; h < n_heads; ++h) heads.emplace_back(dtype, s, pad, step);
    for (std::size_t h = 1; h < n_heads; ++h) heads[h].q.fill(h + 10);
  }
  void share_keys() {
    for (HeadProblem& head : heads) {
      head.k = heads[0].k;
      head.v = heads[0].v;
    }
  }
  template <class Change>
  Group& each(Change&& change) {
    for (HeadProblem& head : heads) change(head);
    return *this;
  }
  std::vector<HeadProblem> heads;
};

struct Cut {
  std::size_t n_leaves = 1;  // of one state
  std::size_t n_rows = kernels::kMostDecodeRows;
  std::size_t step = 1;  // of the output
};

inline std::vector<HeadResult> decode(const Group& group, Cut cut = {}) {
  const HeadProblem& p = group.heads[0];
  std::vector<HeadResult> results;
  std::vector<kernels::DecodeHead> heads;
  for (std::size_t h = 0; h < group.heads.size(); ++h) {
    const DType stats = stats_dtype(p.dtype);
    results.push_back({Array(p.dtype, p.sizes.T_q, p.sizes.d_v, 5, cut.step),
                       Array(stats, p.sizes.T_q, 1), Array(stats, p.sizes.T_q, 1)});
  }
  for (std::size_t h = 0; h < group.heads.size(); ++h)
    heads.push_back({group.heads[h].q.view(), results[h].o.view(), results[h].m.view().data,
                     results[h].l.view().data, group.heads[h].terms, group.heads[h].dropout});
  kernels::FlashDecodeArgs a;
  a.dtype = p.dtype;
  a.heads = heads.data();
  a.k = p.k.view();
  a.v = p.v.view();
  a.T_q = p.sizes.T_q;
  a.T_k = p.sizes.T_k;
  a.d_head = p.sizes.d_head;
  a.d_v = p.sizes.d_v;
  const std::size_t n_all = heads.size() * a.T_q;
  const std::size_t leaves = (a.T_k + kernels::kLeafK - 1) / kernels::kLeafK;
  const std::size_t n_states = std::max<std::size_t>((leaves + cut.n_leaves - 1) / cut.n_leaves, 1);
  for (a.row0 = 0; a.row0 < n_all; a.row0 += cut.n_rows) {
    a.n_rows = std::min(cut.n_rows, n_all - a.row0);
    const std::size_t size = kernels::decode_state_size(a);
    std::vector<unsigned char> memory(n_states * size + 64, 0xff);
    auto* states = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
    for (std::size_t n = n_states; n-- > 0;)  // in any order
      kernels::flash_decode(a, n * cut.n_leaves, cut.n_leaves, states + n * size);
    kernels::finish_decode(a, states, n_states);
  }
  return results;
}

}  // namespace headwise::test
