// Products of ternary planes and int8 activations: the operands, and the code paths.
//
// Layout of the codes. A *tile* is 16 output rows; a *line* is 64 bytes, 16 rows x 16 columns. Byte 4 * r + j of a line
// holds columns j, 4 + j, 8 + j and 12 + j of row r in bits 0-1, 2-3, 4-5 and 6-7. Masking one pair of bits gives 16 rows
// x 4 columns in the order of byte dot products (vpdpbusd, sdot). The code is trit + 1. The order of lines is
// [tile][plane][column / 16]. Rows and columns after the last one are zero trits.
//
// Layout of the scales: one float32 for the whole tensor (group_size 0), or a line among the codes, [group][16]. It has the
// scales of one group (float32) or of two groups (float16) and lies before their codes, so that a tile is one sequential read.
// Scales of rows and groups after the last one are 0.
//
// Order of the float operations of one output, for every path, number of tokens and number of threads, which is that of
// edgedec/reference/float_profile/ops/linear.py, so that results are equal to the bit:
//   total = 0; for each plane, for each group: total += float(exact int32 sum) * scale;  total *= token scale;  += bias
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgedec {

constexpr int64_t kTileRows = 16;     // rows of a tile
constexpr int64_t kLineColumns = 16;  // columns of a line
constexpr int64_t kLineBytes = 64;    // bytes of a line
constexpr int kTokens = 8;            // tokens whose sums are held in registers
constexpr int64_t kPanelTokens = 16, kPanelColumns = 64;  // sizes of a panel of Staged::panels
constexpr int64_t kLeastPanelTokens = 5;                  // fewest tokens that have panels
constexpr int64_t kPairColumns = 32;                      // columns of a block of Staged::pairs
constexpr int64_t kLeastPairTokens = 2;                   // one token alone has no pairs
// Maximum number of columns: 2^20 x 2 x 128 < 2^31, so that no int32 sum can overflow.
constexpr int64_t kMostInputs = int64_t{1} << 20;
constexpr int64_t kMostOutputs = int64_t{1} << 26;

// Functions in headers are always inlined: otherwise the linker could keep a copy with instructions that this CPU lacks.
#define EDGEDEC_INLINE __attribute__((always_inline)) inline

struct Ternary {
    int64_t outputs, inputs;
    int32_t planes, group_size;
    const uint8_t* codes;      // with the scales of groups
    const float* scale;        // scale of the whole tensor; not read if there are groups
    const float* bias;         // [outputs], or null
    bool half_scales = false;  // true if the scales of groups are float16

    EDGEDEC_INLINE int64_t tiles() const { return (outputs + kTileRows - 1) / kTileRows; }
    // Lines of codes of a tile of one plane.
    EDGEDEC_INLINE int64_t lines() const { return (inputs + kLineColumns - 1) / kLineColumns; }
    EDGEDEC_INLINE int64_t groups() const { return group_size ? (inputs + group_size - 1) / group_size : 1; }
    EDGEDEC_INLINE int64_t group_bytes() const { return kTileRows * (half_scales ? 2 : 4); }  // a group's scales in a tile
    EDGEDEC_INLINE int64_t line_groups() const { return kLineBytes / group_bytes(); }          // groups of a line of scales
    EDGEDEC_INLINE int64_t scale_lines() const {  // lines of scales of a tile of one plane
        return group_size ? (groups() + line_groups() - 1) / line_groups() : 0;
    }
    EDGEDEC_INLINE int64_t plane_bytes() const { return (lines() + scale_lines()) * kLineBytes; }  // bytes of a tile
    EDGEDEC_INLINE int64_t tile_bytes() const { return planes * plane_bytes(); }
    EDGEDEC_INLINE int64_t bytes() const { return tiles() * tile_bytes(); }
    const char* problem() const;  // the reason why the sizes are invalid, or null
};

// The order in which a path reads the codes of activations, apart from panels: Staged::codes, Staged::fours or Staged::pairs.
enum class Order { rows, fours, pairs };

// Activations in the form that the kernels read. The orders are those of the path; the pointers to others are not valid.
struct Staged {
    int64_t tokens;
    int64_t stride;       // bytes of a token's codes: columns rounded up to 32; the additional codes are 0
    const int8_t* codes;  // [tokens][stride]
    // The same codes in the order [stride / 4][tokens][4] for each group of kTokens tokens (the last may have fewer), so that
    // the operands of broadcasts have constant distances.
    const int8_t* fours;
    // The same codes in the order [stride / 32][4][pairs][2][2][4] for each group of kTokens tokens: in each block of 32
    // columns, columns 4 * i to 4 * i + 3 of a token and those 16 further on, then the same of the other token of the pair. A
    // token without another has zeros beside it.
    const int8_t* pairs;
    const int32_t* sums;  // [tokens][groups] sums of the codes, which correct for weights stored as trit + 1
    const float* scales;  // [tokens]
    // The same codes in the order [tokens / 16][columns / 64][16][64], if the path needs them and there are enough tokens. Columns
    // after the last one are 0; tokens after the last one are undefined.
    const int8_t* panels;
};

// Computes one tile for all tokens. The result of a row is at out[token * stride + row].
using TileKernel = void (*)(const Ternary&, const Staged&, int64_t tile, float* out, int64_t stride);

// Quantizes x float32 [columns] to codes [stride] with the scale absmax / 127; ties round to even. A token with NaN or
// infinity gets codes 0 and the scale NaN, so that all of its outputs are NaN and other tokens are not affected.
using TokenQuantizer = void (*)(const float* x, int64_t columns, int8_t* codes, int64_t stride, float* scale);

// Computes the sum of the codes of each group of one token.
using GroupSums = void (*)(const int8_t* codes, int64_t columns, int64_t group_size, int32_t* sums);

struct AttentionBlock;
struct AttentionRows;
struct Grid;
struct Int8Matrix;
struct LabelBlocks;
// Computes one block of query rows over one key/value head; see attention.hpp.
using AttentionKernel = void (*)(const AttentionBlock&);
// Writes the new rows of one key/value head to the cache; see attention.hpp.
using AttentionAppend = void (*)(const AttentionRows&, int64_t head);
// Computes the scores by which queries choose keys; see attention.hpp.
using LabelScores = void (*)(const LabelBlocks&);

// Computes out [size] = sum over r, in order, of numbers[r] * directions[r][size], where each product and each sum is rounded.
using KeyCombination = void (*)(const float* numbers, int64_t rank, const float* directions, int64_t size, float* out);
// Computes rows [first, last) of an int8 matrix for all tokens; see int8.hpp.
using Int8Kernel = void (*)(const Int8Matrix&, const Staged&, int64_t first, int64_t last, float* out, int64_t stride);

// Computes one tile of a matrix with evenly spaced levels for all tokens; see grid.hpp.
using GridKernel = void (*)(const Grid&, const Staged&, int64_t tile, float* out, int64_t stride);
// Computes the RMS norm of one row of `width` columns; see rows.hpp.
using RowNorm = void (*)(const float* x, const float* gain, int64_t width, float eps, float* out);
// Computes activation(gate) * up for `count` elements; `activation` is a number of Activation in rows.hpp.
using GatedRows = void (*)(int32_t activation, const float* gate, const float* up, int64_t count, float* out);
// Computes the Walsh-Hadamard transform of one block of columns; see rows.hpp.
using BlockTransform = void (*)(const float* x, const float* signs, int64_t block, bool inverse, float* out);

struct Path {
    const char* name;
    TileKernel tile;  // null if this build does not have the path; then the other functions are null, too
    TokenQuantizer quantize;
    GroupSums sum;
    AttentionKernel attend;
    AttentionAppend append;
    LabelScores score;
    KeyCombination combine;
    Int8Kernel int8_rows;
    GridKernel grid;
    RowNorm norm;
    GatedRows gate;
    BlockTransform transform;
    bool (*usable)();  // returns whether this CPU has the instructions of the path
    Order order;       // order of the activations that `tile` and `grid` read
    bool panels;       // true if `tile` reads Staged::panels from kLeastPanelTokens tokens on
};

// Returns the path of that name; null if there is none.
const Path* find_path(const char* name);
// Returns the path of this process: that of EDGEDEC_KERNEL, or the fastest usable one that passes its self-test. Returns null
// and sets `*message` if EDGEDEC_KERNEL names a path that is unknown, not in this build, not for this CPU, or faulty.
const Path* chosen_path(const char** message);
// Returns whether the results of a path equal those of the scalar path.
bool self_test(const Path&);

// Converts rows [outputs][row_bytes] of one plane (edgedec.schemes.TernaryScheme: trits + 2 in two bits) to the lines of codes
// of a plane of `tile`, which begins at `out`. Returns the row of the first code that is not a trit, or -1.
int64_t pack_codes(const Ternary& shape, const uint8_t* codes, int64_t row_bytes, int64_t tile, uint8_t* out);
// Converts the scales of the groups of one plane, [outputs][groups], to its lines of scales in the same way.
void pack_scales(const Ternary& shape, const void* scales, int64_t tile, uint8_t* out);

// Declares the functions of a path, which EDGEDEC_DEFINE_PATH and similar macros define in the path's files.
#define EDGEDEC_DECLARE_PATH(name)                                            \
    void tile_##name(const Ternary&, const Staged&, int64_t, float*, int64_t); \
    void quantize_##name(const float*, int64_t, int8_t*, int64_t, float*);     \
    void sum_##name(const int8_t*, int64_t, int64_t, int32_t*);                \
    void attend_##name(const AttentionBlock&);                                 \
    void append_##name(const AttentionRows&, int64_t);                         \
    void score_##name(const LabelBlocks&);                                     \
    void combine_##name(const float*, int64_t, const float*, int64_t, float*); \
    void int8_rows_##name(const Int8Matrix&, const Staged&, int64_t, int64_t, float*, int64_t); \
    void int8_rows_##name(const Int8Matrix&, const Staged&, int64_t, int64_t, float*, int64_t); \
    void grid_##name(const Grid&, const Staged&, int64_t, float*, int64_t);    \
    void norm_##name(const float*, const float*, int64_t, float, float*);      \
    void gate_##name(int32_t, const float*, const float*, int64_t, float*);    \
    void transform_##name(const float*, const float*, int64_t, bool, float*);
EDGEDEC_DECLARE_PATH(scalar)
EDGEDEC_DECLARE_PATH(avx2)
EDGEDEC_DECLARE_PATH(avx512vnni)
EDGEDEC_DECLARE_PATH(amx)
EDGEDEC_DECLARE_PATH(neon)
EDGEDEC_DECLARE_PATH(neon_dotprod)
EDGEDEC_DECLARE_PATH(neon_i8mm)

}  // namespace edgedec
