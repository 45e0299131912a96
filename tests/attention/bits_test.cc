// The same bits for any number of threads, any runner, alone or in a batch, with padding, in a
// forked child, from several callers at once, and, for f32 and f64, on every instruction set with
// fused multiply-add.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention.h"
#include "headwise/plan.h"
#include "headwise/runtime.h"
#include "support/isas.h"
#include "support/kernels.h"
#include "support/strided_tensor.h"

namespace headwise {
namespace {

using test::for_each_isa;
using test::Memory;
using test::StridedTensor;
using Bits = std::vector<std::byte>;

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

class ScopedThreads {
 public:
  explicit ScopedThreads(int n) : before_(get_num_threads()) { set_num_threads(n); }
  ~ScopedThreads() { set_num_threads(before_); }

 private:
  int before_;
};

// Enough work for several threads, three leaves of keys, grouped heads.
struct Call {
  static constexpr std::size_t kB = 2, kHeads = 2, kTq = 70, kTk = 1030, kWidth = 12;

  explicit Call(DType type, unsigned seed = 1)
      : dtype(type),
        q(type, {kB, kHeads, kTq, kWidth}),
        k(type, {kB, 1, kTk, kWidth}),
        v(type, {kB, 1, kTk, kWidth}),
        keep(DType::boolean, {kB, 1, kTq, kTk}) {
    std::mt19937 random(seed);
    q.fill_normal(random);
    k.fill_normal(random);
    v.fill_normal(random);
    keep.fill_flags(random, 0.8);
  }
  Bits run() const {
    StridedTensor o(dtype, {kB, kHeads, kTq, kWidth});
    scaled_dot_product_attention(q, k, v, options, o.view());
    return o.bits();
  }
  // With every optional output.
  Bits run_all() const {
    const DType rows = dtype == DType::f64 ? DType::f64 : DType::f32;
    StridedTensor o(dtype, {kB, kHeads, kTq, kWidth}), m(rows, {kB, kHeads, kTq}),
        l(rows, {kB, kHeads, kTq}), lse(rows, {kB, kHeads, kTq}),
        weights(dtype, {kB, kHeads, kTq, kTk}), average(dtype, {kB, kTq, kTk});
    AttentionExtras extras{m.view(), l.view(), lse.view(), weights.view(), average.view()};
    scaled_dot_product_attention(q, k, v, options, o.view(), extras);
    Bits all;
    for (const StridedTensor* part : {&o, &m, &l, &lse, &weights, &average}) {
      const Bits bits = part->bits();
      all.insert(all.end(), bits.begin(), bits.end());
    }
    return all;
  }
  void use_all_options() {
    options.mask = Mask::keep(keep);
    options.causal = CausalAlign::bottom_right;
    options.dropout_p = 0.1;
    options.dropout_seed = 7;
  }

  DType dtype;
  StridedTensor q, k, v, keep;
  AttentionOptions options;
};

TEST(Bits, AnyNumberOfThreads) {
  for_each_isa([] {
    for (const DType dtype : kDTypes) {
      Call call(dtype);
      call.use_all_options();
      const ScopedThreads one(1);
      const Bits expected = call.run_all();
      for (const int n : {2, 5}) {
        const ScopedThreads several(n);
        EXPECT_EQ(call.run_all(), expected) << name_of(dtype) << " on " << n << " threads";
      }
    }
  });
}

TEST(Bits, InstructionSetsWithFusedMultiplyAdd) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const bool all_options : {false, true}) {
      Call call(dtype);
      if (all_options) call.use_all_options();
      Bits expected;
      for (const std::string& name : available_isas()) {
        if (!test::has_fma(name)) continue;
        const test::ScopedIsa forced(name);
        const Bits bits = call.run_all();
        if (expected.empty()) expected = bits;
        EXPECT_EQ(bits, expected) << name_of(dtype) << " on " << name;
      }
    }
}

TEST(Bits, AloneAndInABatch) {
  for_each_isa([] {
    for (const DType dtype : kDTypes) {
      Call call(dtype);
      const Bits batch = call.run();
      const std::size_t half = batch.size() / 2;
      const auto second = [](const StridedTensor& x) {
        ConstTensorView view = x;
        view.data = static_cast<const std::byte*>(view.data) +
                    view.strides[0] * static_cast<std::ptrdiff_t>(size_of(view.dtype));
        view.shape[0] = 1;
        return view;
      };
      StridedTensor o(dtype, {1, Call::kHeads, Call::kTq, Call::kWidth});
      scaled_dot_product_attention(second(call.q), second(call.k), second(call.v), {}, o.view());
      EXPECT_EQ(o.bits(), Bits(batch.begin() + static_cast<std::ptrdiff_t>(half), batch.end()))
          << name_of(dtype);
    }
  });
}

// Sizes choose the kernel, whose bits are its own: one query alone may be another kernel's.
TEST(Bits, OneQueryAndManyOfOneKernel) {
  for_each_isa([] {
    test::for_each_kernel([] {
      for (const DType dtype : kDTypes) {
        const Call call(dtype);
        if (explain_attention(call.q, call.k, call.v).kernel != kernel()) continue;
        StridedTensor all(dtype, {Call::kB, Call::kHeads, Call::kTq, Call::kWidth});
        scaled_dot_product_attention(call.q, call.k, call.v, {}, all.view());
        for (const std::size_t t : {std::size_t{0}, Call::kTq / 2, Call::kTq - 1}) {
          const auto row = [&](ConstTensorView view) {
            view.data = static_cast<const std::byte*>(view.data) +
                        view.strides[2] * static_cast<std::ptrdiff_t>(t * size_of(dtype));
            view.shape[2] = 1;
            return Tensor::copy_of(view);
          };
          const Tensor alone = scaled_dot_product_attention(row(call.q), call.k, call.v);
          EXPECT_EQ(
              std::memcmp(alone.view().data, row(all).view().data, alone.size() * size_of(dtype)),
              0)
              << name_of(dtype) << ", query " << t;
        }
      }
    });
  });
}

// Ways to say "every key", and ways to say "causal".
TEST(Bits, MasksThatMeanTheSame) {
  constexpr std::size_t T_q = Call::kTq, T_k = Call::kTk;
  StridedTensor all(DType::boolean, {T_q, T_k}), none(DType::boolean, {1, T_k}),
      lower(DType::boolean, {T_q, T_k});
  all.fill([](const Shape&) { return 1.0; });
  none.fill([](const Shape&) { return 0.0; });
  lower.fill([](const Shape& at) { return at[1] <= at[0] ? 1.0 : 0.0; });
  for_each_isa([&] {
    for (const DType dtype : kDTypes) {
      StridedTensor zero(dtype, {1, 1});
      zero.fill([](const Shape&) { return 0.0; });
      StridedTensor upper(dtype, {T_q, T_k});
      upper.fill([](const Shape& at) { return at[1] <= at[0] ? 0.0 : -test::kInfinity; });
      Call call(dtype);
      const Bits full = call.run();
      // The AMX kernel scales scores within exp, but for biases before it: one rounding more.
      const auto differs = [&](const Mask& mask) {
        call.options.mask = mask;
        return mask.kind() == Mask::Kind::bias &&
               explain_attention(call.q, call.k, call.v, call.options).kernel == "bf16_amx";
      };
      for (const Mask& mask : {Mask::keep(all), Mask::ignore(none), Mask::bias(zero)}) {
        if (differs(mask)) continue;
        EXPECT_EQ(call.run(), full) << name_of(dtype);
      }
      call.options.mask.reset();
      call.options.causal = CausalAlign::top_left;
      const Bits causal = call.run();
      call.options.causal.reset();
      for (const Mask& mask : {Mask::keep(lower), Mask::bias(upper)}) {
        if (differs(mask)) continue;
        EXPECT_EQ(call.run(), causal) << name_of(dtype);
      }
    }
  });
}

// Hidden keys behind the visible ones, whatever they hold, are as if they were not there.
TEST(Bits, PaddedKeys) {
  for_each_isa([] {
    for (const DType dtype : kDTypes)
      for (const std::size_t T_k : {1u, 65u, 511u, 513u, 1029u}) {
        Call call(dtype);
        StridedTensor keep(DType::boolean, {1, Call::kTk});
        keep.fill([&](const Shape& at) { return at[1] < T_k ? 1.0 : 0.0; });
        for (StridedTensor* x : {&call.k, &call.v})
          test::for_each_index(x->shape(), [&](const Shape& at) {
            if (at[2] >= T_k) x->set(at, test::kNaN);
          });
        call.options.mask = Mask::keep(keep);
        ConstTensorView k = call.k, v = call.v;
        k.shape[2] = v.shape[2] = T_k;
        StridedTensor o(dtype, {Call::kB, Call::kHeads, Call::kTq, Call::kWidth});
        scaled_dot_product_attention(call.q, k, v, {}, o.view());
        EXPECT_EQ(call.run(), o.bits()) << name_of(dtype) << ", " << T_k << " keys";
      }
  });
}

TEST(Bits, AnyStrides) {
  for_each_isa([] {
    for (const DType dtype : kDTypes) {
      const Call call(dtype);
      const Bits expected = call.run();
      for (const Memory memory : test::kWritable) {
        const auto moved = [&](const StridedTensor& x) {
          return StridedTensor(dtype, x.shape(), memory).fill([&](const Shape& at) {
            return x(at);
          });
        };
        StridedTensor o(dtype, {Call::kB, Call::kHeads, Call::kTq, Call::kWidth}, memory);
        scaled_dot_product_attention(moved(call.q), moved(call.k), moved(call.v), {}, o.view());
        EXPECT_EQ(o.bits(), expected) << name_of(dtype) << static_cast<int>(memory);
        EXPECT_TRUE(o.surroundings_untouched());
      }
    }
  });
}

TEST(Bits, SeveralCallersAtOnce) {
  const ScopedThreads threads(3);
  const Call call(DType::f32);
  const Bits expected = call.run();
  std::vector<std::thread> callers;
  std::vector<int> wrong(8, 0);
  for (std::size_t n = 0; n < wrong.size(); ++n)
    callers.emplace_back([&, n] {
      for (int round = 0; round < 20; ++round) wrong[n] += call.run() != expected ? 1 : 0;
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, std::vector<int>(8, 0));
}

TEST(Bits, AfterFork) {
  const ScopedThreads threads(2);
  Call call(DType::f32);
  call.use_all_options();
  const Bits expected = call.run_all();  // the parent's threads exist now
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a hang ends the child, not the test
    _exit(call.run_all() == expected ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(call.run_all(), expected);
}

TEST(Bits, ALentRunnerInAnyOrder) {
  const ScopedThreads threads(2);
  Call call(DType::f32);
  call.use_all_options();
  const Bits expected = call.run_all();
  std::size_t calls = 0;
  set_parallel_runner(
      [](void* state, std::size_t n, ParallelTask task, void* context) {
        ++*static_cast<std::size_t*>(state);
        std::thread other([&] {
          for (std::size_t i = 1; i < n; i += 2) task(context, i);
        });
        for (std::size_t i = (n + 1) / 2; i-- > 0;) task(context, 2 * i);
        other.join();
      },
      &calls, 2);
  const Bits lent = call.run_all();
  set_parallel_runner(nullptr, nullptr, 0);
  EXPECT_GT(calls, 0u);
  EXPECT_EQ(lent, expected);
}

}  // namespace
}  // namespace headwise
