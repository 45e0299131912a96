// A thread's second call of a size allocates nothing: views lie in place, and working memory is
// kept. Counts operator new of the whole program.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention.h"
#include "headwise/multihead_attention.h"
#include "runtime/parallel_for.h"
#include "support/tensors.h"
#include "support/threads.h"

namespace {

std::atomic<std::size_t> allocations{0};

void* counted(std::size_t size, std::size_t alignment) {
  allocations.fetch_add(1);
  const std::size_t padded = (size + alignment - 1) / alignment * alignment;
  if (void* p = std::aligned_alloc(alignment, padded == 0 ? alignment : padded)) return p;
  throw std::bad_alloc();
}

// Not inlined: g++ 12 would see free() of what operator new gave, and warn of a mismatch.
[[gnu::noinline]] void release(void* p) { std::free(p); }

}  // namespace

void* operator new(std::size_t size) { return counted(size, alignof(std::max_align_t)); }
void* operator new[](std::size_t size) { return counted(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
// A sanitizer has its own of this form too, and would miss its partner.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1);
  return std::malloc(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1);
  return std::malloc(size);
}
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { release(p); }

namespace headwise {
namespace {

// Each thread of the pool makes the call once: which of them a call's tasks meet is chance.
template <typename F>
void warm_every_thread(F&& call) {
  const int n = get_num_threads();
  std::atomic<int> begun{0};
  std::mutex one_at_a_time;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  runtime::parallel_for(static_cast<std::size_t>(n), [&](std::size_t) {
    ++begun;
    while (begun.load() < n && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    const std::lock_guard lock(one_at_a_time);
    call();
  });
}

template <typename F>
void expect_no_allocation_once_warm(F&& call) {
  call();
  warm_every_thread(call);
  EXPECT_GT(allocations.load(), 0u) << "nothing is counted";
  const std::size_t before = allocations.load();
  for (int n = 0; n < 3; ++n) call();
  EXPECT_EQ(allocations.load(), before);
}

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

struct Sizes {
  std::size_t T_q, T_k, d;
};
// Small, decode, several leaves, enough for threads.
constexpr Sizes kSizes[] = {{4, 4, 4}, {1, 700, 64}, {12, 12, 16}, {65, 1300, 40}, {300, 300, 64}};

TEST(Allocations, AttentionAllocatesNothingOnceWarm) {
  for (const int threads : {1, 2, 3}) {
    const test::ScopedThreads scoped(threads);
    for (const DType dtype : kTypes)
      for (const auto& [T_q, T_k, d] : kSizes) {
        SCOPED_TRACE(std::to_string(T_q) + ", " + std::to_string(T_k) + ", " +
                     std::string(name_of(dtype)) + ", threads " + std::to_string(threads));
        const Tensor q = test::gaussian(dtype, {2, 4, T_q, d}, 1);
        const Tensor k = test::gaussian(dtype, {2, 2, T_k, d}, 2);
        const Tensor v = test::gaussian(dtype, {2, 2, T_k, d + 1}, 3);
        const Tensor bias = test::gaussian(dtype, {T_q, T_k}, 4);
        const std::vector<char> keep(T_k, 1);
        Tensor o(dtype, {2, 4, T_q, d + 1}), weights(dtype, {2, 4, T_q, T_k});
        Tensor average(dtype, {2, T_q, T_k});
        expect_no_allocation_once_warm(
            [&] { scaled_dot_product_attention(q, k, v, {}, o.view()); });
        AttentionOptions options;
        options.mask = Mask::keep({keep.data(), DType::boolean, Shape{1, T_k}});
        options.second_mask = Mask::bias(bias.view());
        options.causal = CausalAlign::bottom_right;
        options.dropout_p = 0.5;
        AttentionExtras extras;
        extras.weights = weights.view();
        extras.average_weights = average.view();
        expect_no_allocation_once_warm(
            [&] { scaled_dot_product_attention(q, k, v, options, o.view(), extras); });
      }
  }
}

TEST(Allocations, TheModuleAllocatesNothingOnceWarm) {
  for (const int threads : {1, 2})
    for (const DType dtype : kTypes)
      for (const Sizes& sizes : {Sizes{4, 4, 8}, Sizes{1, 1, 96}, Sizes{150, 150, 96}}) {
        const test::ScopedThreads scoped(threads);
        const std::size_t T = sizes.T_q, E = sizes.d;
        SCOPED_TRACE(std::to_string(T) + ", " + std::string(name_of(dtype)));
        MultiheadAttention module({.embed_dim = E, .num_heads = 4, .dtype = dtype});
        module.eval();
        const Tensor x = test::gaussian(dtype, {T, 2, E}, 1);
        const std::vector<char> hidden(2 * T, 0);
        Tensor output(dtype, {T, 2, E}), average(dtype, {2, T, T}), heads(dtype, {2, 4, T, T});
        ForwardOptions options;
        expect_no_allocation_once_warm([&] { module.forward(x, x, x, options, output.view()); });
        options.key_padding_mask = Mask::ignore({hidden.data(), DType::boolean, Shape{2, T}});
        options.is_causal = true;
        expect_no_allocation_once_warm(
            [&] { module.forward(x, x, x, options, output.view(), average.view()); });
        options.average_attn_weights = false;
        expect_no_allocation_once_warm(
            [&] { module.forward(x, x, x, options, output.view(), heads.view()); });
      }
}

// Working memory of more than 8 MiB stays too, as long as calls use it.
TEST(Allocations, LargeCallsAllocateNothingOnceWarm) {
  const std::size_t T = 4500, E = 512;
  MultiheadAttention module({.embed_dim = E, .num_heads = 256, .head_dim = 2});
  const Tensor x = Tensor::zeros(DType::f32, {T, 1, E});
  Tensor output(DType::f32, {T, 1, E});
  module.eval();
  const ConstTensorView few(x.view().data, DType::f32, {2, 1, E});
  const auto call = [&] { module.forward(x, few, few, {}, output.view()); };
  expect_no_allocation_once_warm(call);
}

}  // namespace
}  // namespace headwise
