// A thread's second call of a size allocates nothing: views lie in place, and working memory is
// kept. Counts operator new of the whole program.
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention.h"

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

TEST(Allocations, SmallCallsAllocateNothingOnceWarm) {
  constexpr std::size_t n_heads = 4, T = 12, d = 16;
  const Shape shape{2, n_heads, T, d};
  const std::vector<float> x(2 * n_heads * T * d, 0.5f);
  const std::vector<char> keep(T, 1);
  std::vector<float> o(2 * n_heads * T * d), weights(2 * n_heads * T * T), average(2 * T * T);
  AttentionOptions options;
  options.mask = Mask::keep({keep.data(), DType::boolean, Shape{1, T}});
  options.causal = CausalAlign::top_left;
  options.dropout_p = 0.5;
  AttentionExtras extras;
  extras.weights = {weights.data(), Shape{2, n_heads, T, T}};
  extras.average_weights = {average.data(), Shape{2, T, T}};
  const ConstTensorView view{x.data(), shape};
  const auto call = [&] {
    scaled_dot_product_attention(view, view, view, options, TensorView{o.data(), shape}, extras);
  };
  call();
  EXPECT_GT(allocations.load(), 0u) << "nothing is counted";
  const std::size_t before = allocations.load();
  for (int n = 0; n < 10; ++n) call();
  EXPECT_EQ(allocations.load(), before);
}

}  // namespace
}  // namespace headwise
