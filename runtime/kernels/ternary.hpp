// Ternary planes times int8 activations: what is multiplied, and the code paths that do it.
//
// Layout of the codes. A *tile* is 16 output rows; a *line* is 64 bytes, 16 rows x 16 columns. Byte 4 * r + j of a line
// holds columns j, 4 + j, 8 + j and 12 + j of row r in bits 0-1, 2-3, 4-5 and 6-7: masking one pair of bits gives 16 rows
// x 4 columns in the order that byte dot products (vpdpbusd, sdot) take. Code = trit + 1. Lines follow one another as
// [tile][plane][column / 16]: a tile is one sequential read. Rows past the last and columns past the last are zero trits.
//
// Layout of the scales: one float32 for the whole tensor (group_size 0), or [tile][plane][group][16].
//
// Order of the float operations of one output, whatever the path, the number of tokens and the threads (and that of
// edgedec/reference/float_profile/ops/linear.py, so that results are equal to the bit):
//   total = 0; for each plane, for each group: total += float(exact int32 sum) * scale;  total *= token scale;  += bias
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgedec {

constexpr int64_t kTileRows = 16;
constexpr int64_t kLineColumns = 16;
constexpr int64_t kLineBytes = 64;
constexpr int kTokens = 8;  // tokens whose sums are held in registers
// 2^20 columns x 2 x 128 < 2^31: no int32 sum can overflow.
constexpr int64_t kMostInputs = int64_t{1} << 20;
constexpr int64_t kMostOutputs = int64_t{1} << 26;

// Inlined always: compiled with a path's instructions, a copy of their own must not be what the linker keeps.
#define EDGEDEC_INLINE __attribute__((always_inline)) inline

struct Ternary {
    int64_t outputs, inputs;
    int32_t planes, group_size;
    const uint8_t* codes;
    const float* scales;
    const float* bias;  // [outputs], or null

    EDGEDEC_INLINE int64_t tiles() const { return (outputs + kTileRows - 1) / kTileRows; }
    EDGEDEC_INLINE int64_t lines() const { return (inputs + kLineColumns - 1) / kLineColumns; }  // of a row of one plane
    EDGEDEC_INLINE int64_t groups() const { return group_size ? (inputs + group_size - 1) / group_size : 1; }
    EDGEDEC_INLINE int64_t code_bytes() const { return tiles() * planes * lines() * kLineBytes; }
    EDGEDEC_INLINE int64_t scale_count() const { return group_size ? tiles() * planes * groups() * kTileRows : 1; }
    const char* problem() const;  // why the sizes are impossible, or null
};

// Activations as the kernels read them.
struct Staged {
    int64_t tokens;
    int64_t stride;       // bytes of a token's codes: columns rounded up to whole lines, the rest zero
    const int8_t* codes;  // [tokens][stride]
    // The same for each group of kTokens tokens (the last may have fewer), by fours of columns: [stride / 4][tokens][4]. What
    // a broadcast reads lies at a distance that the compiler knows.
    const int8_t* fours;
    const int32_t* sums;  // [tokens][groups]: sum of the codes; codes of weights are trit + 1
    const float* scales;  // [tokens]
};

// One tile for all tokens: out[token * stride + row of the tile].
using TileKernel = void (*)(const Ternary&, const Staged&, int64_t tile, float* out, int64_t stride);

// x float32 [columns] -> codes [stride], token scale absmax / 127; ties round to even. A token that holds NaN or infinity
// gets codes 0 and scale NaN: all of its outputs are NaN, no other token is touched.
using TokenQuantizer = void (*)(const float* x, int64_t columns, int8_t* codes, int64_t stride, float* scale);

// Sums of the codes of each group of one token.
using GroupSums = void (*)(const int8_t* codes, int64_t columns, int64_t group_size, int32_t* sums);

struct AttentionBlock;
struct AttentionRows;
struct Int8Matrix;
// One block of query rows over one key/value head: attention.hpp.
using AttentionKernel = void (*)(const AttentionBlock&);
// New rows into the cache: attention.hpp.
using AttentionAppend = void (*)(const AttentionRows&);
// Rows [first, last) of an int8 matrix for all tokens: int8.hpp.
using Int8Kernel = void (*)(const Int8Matrix&, const Staged&, int64_t first, int64_t last, float* out, int64_t stride);

struct Path {
    const char* name;
    TileKernel tile;  // null: not in this build, as the other functions
    TokenQuantizer quantize;
    GroupSums sum;
    AttentionKernel attend;
    AttentionAppend append;
    Int8Kernel int8_rows;
    bool (*usable)();  // does this CPU have what it needs?
};

const Path* find_path(const char* name);  // null: unknown
// The path for this process: EDGEDEC_KERNEL, or the fastest that is usable and passes the self-test. Null with `*message`
// set: EDGEDEC_KERNEL names one that is unknown, not in this build or not for this CPU.
const Path* chosen_path(const char** message);
bool self_test(const Path&);

// trits + 2 in two bits, rows [outputs][row_bytes] of one plane (edgedec.schemes.TernaryScheme) -> lines of `tile` at out.
// Returns the row of the first code that is no trit, or -1.
int64_t pack_tile(const uint8_t* codes, int64_t row_bytes, int64_t outputs, int64_t inputs, int64_t tile, uint8_t* out);
// scales [planes][outputs][groups] -> [tile][planes][groups][16] of one tile.
void pack_tile_scales(const float* scales, const Ternary& shape, int64_t tile, float* out);

// Defined by EDGEDEC_DEFINE_PATH in each path's file.
#define EDGEDEC_DECLARE_PATH(name)                                            \
    void tile_##name(const Ternary&, const Staged&, int64_t, float*, int64_t); \
    void quantize_##name(const float*, int64_t, int8_t*, int64_t, float*);     \
    void sum_##name(const int8_t*, int64_t, int64_t, int32_t*);                \
    void attend_##name(const AttentionBlock&);                                 \
    void append_##name(const AttentionRows&);                                  \
    void int8_rows_##name(const Int8Matrix&, const Staged&, int64_t, int64_t, float*, int64_t);
EDGEDEC_DECLARE_PATH(scalar)
EDGEDEC_DECLARE_PATH(avx2)
EDGEDEC_DECLARE_PATH(avx512vnni)
EDGEDEC_DECLARE_PATH(neon)
EDGEDEC_DECLARE_PATH(neon_dotprod)

}  // namespace edgedec
