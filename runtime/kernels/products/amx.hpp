// Tiles of AMX, the processor's matrix registers, by inline assembler, so that no option of the compiler is needed. A tile has
// up to 16 rows of up to 64 bytes. multiply() adds to C, int32 [m][n], the products of A, int8 [m][4 * k], and B, [k][n][4]:
//   C[i][j] += sum over k and q of A[i][4 * k + q] * B[k][j][q]
// Additions are modulo 2^32.
//
// With EDGEDEC_EMULATE_AVX512 the same functions are plain C++, for tests on machines without AMX.
#pragma once

#include <cstdint>

#include "products/ternary.hpp"

#if defined(EDGEDEC_EMULATE_AVX512)
#define EDGEDEC_AMX 1
#elif defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define EDGEDEC_AMX 1  // the assemblers of older compilers may not know the instructions
#else
#define EDGEDEC_AMX 0
#endif

#if EDGEDEC_AMX

namespace edgedec {
namespace {

// The operand of ldtilecfg. Source: Intel's Software Developer's Manual, volume 1, chapter 18.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    EDGEDEC_INLINE void set(int tile, int64_t count, int64_t bytes) {
        rows[tile] = static_cast<uint8_t>(count);
        row_bytes[tile] = static_cast<uint16_t>(bytes);
    }
};

#ifdef EDGEDEC_EMULATE_AVX512
struct EmulatedTiles {
    TileShapes shapes;
    uint8_t bytes[8][16][64];
};
static thread_local EmulatedTiles emulated;

inline void configure_tiles(const TileShapes& shapes) {
    emulated.shapes = shapes;
    __builtin_memset(emulated.bytes, 0, sizeof emulated.bytes);
}
inline void release_tiles() { emulated.shapes = TileShapes{}; }
template <int Tile>
void clear_tile() {
    __builtin_memset(emulated.bytes[Tile], 0, sizeof emulated.bytes[Tile]);
}
template <int Tile>
void load_tile(const void* from, int64_t stride) {
    clear_tile<Tile>();
    for (int row = 0; row < emulated.shapes.rows[Tile]; ++row)
        __builtin_memcpy(emulated.bytes[Tile][row], static_cast<const uint8_t*>(from) + row * stride,
                         emulated.shapes.row_bytes[Tile]);
}
template <int Tile>
void store_tile(void* to, int64_t stride) {
    for (int row = 0; row < emulated.shapes.rows[Tile]; ++row)
        __builtin_memcpy(static_cast<uint8_t*>(to) + row * stride, emulated.bytes[Tile][row],
                         emulated.shapes.row_bytes[Tile]);
}
template <int C, int A, int B, bool Signed>
void multiply() {
    const int rows = emulated.shapes.rows[A], depth = emulated.shapes.row_bytes[A] / 4;
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < emulated.shapes.row_bytes[C] / 4; ++j) {
            uint32_t sum;
            __builtin_memcpy(&sum, emulated.bytes[C][i] + 4 * j, 4);
            for (int k = 0; k < 4 * depth; ++k) {
                const int a = static_cast<int8_t>(emulated.bytes[A][i][k]);
                const uint8_t b = emulated.bytes[B][k / 4][4 * j + k % 4];
                sum += static_cast<uint32_t>(a * (Signed ? static_cast<int8_t>(b) : b));
            }
            __builtin_memcpy(emulated.bytes[C][i] + 4 * j, &sum, 4);
        }
}
#else
EDGEDEC_INLINE void configure_tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
EDGEDEC_INLINE void release_tiles() { asm volatile("tilerelease"); }
template <int Tile>
EDGEDEC_INLINE void clear_tile() {
    asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
}
template <int Tile>
EDGEDEC_INLINE void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
EDGEDEC_INLINE void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(Tile) : "memory");
}
// The elements of A are signed, and those of B, too, if Signed is true.
template <int C, int A, int B, bool Signed>
EDGEDEC_INLINE void multiply() {
    if constexpr (Signed)
        asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
    else
        asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
#endif

}  // namespace
}  // namespace edgedec

#endif
