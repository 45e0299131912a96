// AMX as the kernels use it: eight tiles of 16 rows of 64 bytes. Tile A holds 16 rows of 32 bf16,
// tile B 16 pairs of rows with 16 columns, and a sum of products goes to 16 x 16 f32.
// Instructions, not intrinsics: those of g++ 12 take only literal numbers of tiles, and its loads
// don't tell the compiler that they read memory.
#if defined(HEADWISE_KERNELS_BF16_AMX_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_BF16_AMX_TILES_INL_H_
#undef HEADWISE_KERNELS_BF16_AMX_TILES_INL_H_
#else
#define HEADWISE_KERNELS_BF16_AMX_TILES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16,amx-tile,amx-bf16")
namespace headwise::kernels::HWY_NAMESPACE {

inline constexpr size_t kTileRows = 16;      // of A and of a sum; columns of B and of a sum
inline constexpr size_t kTileElements = 32;  // of a row of A, along which products are summed

template <int kTile>
HWY_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

template <int kTile>
HWY_INLINE void load_tile(const void* from, size_t row_bytes) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(row_bytes) : "memory");
}

template <int kTile>
HWY_INLINE void store_tile(void* to, size_t row_bytes) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(to), "r"(row_bytes) : "memory");
}

template <int kSum, int kA, int kB>
HWY_INLINE void add_tile_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}

// The tiles of this thread are set up for as long as it lives. Then they are set up as before:
// libraries that share our threads take theirs to be as they left them.
class TileSession {
 public:
  TileSession() {
    Config ours;
    ours.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      ours.row_bytes[tile] = 64;
      ours.rows[tile] = 16;
    }
    asm volatile("sttilecfg %0" : "=m"(before_));
    asm volatile("ldtilecfg %0" ::"m"(ours));
  }
  ~TileSession() {
    if (before_.palette == 0)
      asm volatile("tilerelease");
    else
      asm volatile("ldtilecfg %0" ::"m"(before_));
  }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

 private:
  struct Config {
    std::uint8_t palette = 0, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  };
  static_assert(sizeof(Config) == 64);
  Config before_;
};

// Rows of a matrix of tiles, in bytes.
struct TileMatrix {
  void* data;
  size_t row_bytes;
};
struct ConstTileMatrix {
  const void* data;
  size_t row_bytes;
};

// kRows x kColumns sums in the first tiles, row by row. A tile of A serves a row of them, one of B
// a column.
template <int kRows, int kColumns>
class TileSums {
  static constexpr int kA = 4, kB = 6;  // and the ones after them
  static_assert(kRows * kColumns <= kA && kColumns <= 2);
  template <int kTile>
  using Tile = std::integral_constant<int, kTile>;
  using All = std::make_integer_sequence<int, kRows * kColumns>;

 public:
  static HWY_INLINE void zero() {
    for_each([](auto tile) HWY_ATTR { zero_tile<decltype(tile)::value>(); });
  }
  static HWY_INLINE void load(const TileMatrix& c) {
    for_each([&c](auto tile) HWY_ATTR {
      load_tile<decltype(tile)::value>(place(c, decltype(tile)::value), c.row_bytes);
    });
  }
  static HWY_INLINE void store(const TileMatrix& c) {
    for_each([&c](auto tile) HWY_ATTR {
      store_tile<decltype(tile)::value>(place(c, decltype(tile)::value), c.row_bytes);
    });
  }
  // += A B: A [16 kRows, 32], B 16 pairs of rows with 16 kColumns columns
  static HWY_INLINE void add(const ConstTileMatrix& a, const ConstTileMatrix& b) {
    for_each([&](auto tile) HWY_ATTR {
      constexpr int kSum = decltype(tile)::value, kRow = kSum / kColumns, kColumn = kSum % kColumns;
      constexpr int kRowTile = kA + kRow % 2, kColumnTile = kB + kColumn;
      if constexpr (kColumn == 0) load_tile<kRowTile>(at(a, kRow * kTileRows, 0), a.row_bytes);
      if constexpr (kRow == 0) load_tile<kColumnTile>(at(b, 0, kColumn * 64), b.row_bytes);
      add_tile_product<kSum, kRowTile, kColumnTile>();
    });
  }

 private:
  template <class Body>
  static HWY_INLINE void for_each(Body&& body) {
    for_each(body, All());
  }
  template <class Body, int... tile>
  static HWY_INLINE void for_each(Body& body, std::integer_sequence<int, tile...>) {
    (body(Tile<tile>()), ...);
  }
  static HWY_INLINE void* place(const TileMatrix& c, int tile) {
    return static_cast<char*>(c.data) + tile / kColumns * kTileRows * c.row_bytes +
           tile % kColumns * 64;
  }
  static HWY_INLINE const void* at(const ConstTileMatrix& x, size_t rows, size_t bytes) {
    return static_cast<const char*>(x.data) + rows * x.row_bytes + bytes;
  }
};

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_POP_ATTRIBUTES
#endif  // HWY_AVX3

#endif  // include guard
