// Attention over one key/value cache with a fixed order of operations: the result of a query is a function of the query and
// the ordered list of visible keys and values. It does not depend on their slots, on masked neighbours, on other queries or
// on threads.
//
// Order of the float operations of one query and head, on every path (fma has one rounding):
//   score[key] = fma chain over the dimensions, from 0;  times the key's scale (int8);  times `scale`;  with a cap:
//   cap_of() in attention_tile.hpp, element by element
//   weight[key] = exp(score - largest score): exp_of() in attention_tile.hpp, element by element
//   total = sum of weights, and for each dimension an fma chain of weight (times the value's scale) and value, from 0: both
//   over the visible keys in the order of their slots;  out = chain / total
// The largest score is computed first, so no sum is rescaled, and no sum is divided into parts.
//
// The cache of one state has, for each key/value head, keys, values and, for int8, the scales of keys and of values. Keys are
// stored in blocks of 16 slots, [block][dimension][16], so that a vector contains one dimension of neighbouring keys. Values
// are stored by rows, [slot][dimension]. `bits` is 32 for float32, 16 for float16 (larger numbers become 65504), or 8 for
// int8 codes with one float32 scale per slot, absmax / 127.
#pragma once

#include <cstdint>

#include "ternary.hpp"

namespace edgedec {

constexpr int64_t kKeyBlock = 16;      // slots of a block of keys
constexpr int64_t kMostHeadDim = 512;  // maximum head dimension
constexpr int kRows = 8;               // query rows of a block; one row is one query of one head

struct KvLayout {
    int64_t kv_heads, head_dim, positions;
    int32_t bits;

    EDGEDEC_INLINE int64_t slots() const { return (positions + kKeyBlock - 1) / kKeyBlock * kKeyBlock; }
    EDGEDEC_INLINE int64_t part_bytes() const { return slots() * head_dim * (bits / 8); }
    EDGEDEC_INLINE int64_t scale_bytes() const { return bits == 8 ? slots() * 4 : 0; }
    EDGEDEC_INLINE int64_t head_bytes() const { return 2 * (part_bytes() + scale_bytes()); }
    EDGEDEC_INLINE int64_t bytes() const { return kv_heads * head_bytes(); }
    EDGEDEC_INLINE int64_t keys(int64_t head) const { return head * head_bytes(); }
    EDGEDEC_INLINE int64_t values(int64_t head) const { return keys(head) + part_bytes(); }
    EDGEDEC_INLINE int64_t key_scales(int64_t head) const { return values(head) + part_bytes(); }
    EDGEDEC_INLINE int64_t value_scales(int64_t head) const { return key_scales(head) + scale_bytes(); }
    const char* problem() const;  // the reason why the sizes are invalid, or null
};

// Copies slot start + nodes[i] to slot start + i, for every head. `nodes` must ascend.
void move_rows(const KvLayout& layout, uint8_t* cache, int64_t start, const int32_t* nodes, int64_t count);

struct Rotary {
    int32_t pairs;  // 0: none; 1: (i, i + half); 2: (2 i, 2 i + 1)
    const float *cos, *sin;  // [positions][head_dim / 2]
};

// New rows of a pass, which are rotated and stored from slot `start` on.
struct AttentionRows {
    KvLayout layout;
    uint8_t* cache;
    int64_t start, tokens;
    const float *keys, *values;  // [tokens][kv_heads * head_dim]
    const int64_t* positions;    // [tokens]
    Rotary rotary;
    TokenQuantizer quantize;
};

// Query rows [first, first + count) of one key/value head, where row = token * group + head in the group, and count <= kRows.
struct AttentionBlock {
    KvLayout layout;
    const uint8_t* cache;
    int64_t past, tokens;  // committed slots, whose position is their number, and the slots of this pass after them
    int64_t head, group, first, count;
    const float* queries;  // [tokens][kv_heads * group * head_dim]
    float* out;            // [tokens][kv_heads * group * head_dim]
    const int64_t* positions;
    const uint64_t* visible;  // [tokens][words], bit j of row i: token i sees token j
    int64_t words;
    int64_t window, sinks;  // window 0: no window
    float scale;
    float cap;  // a score s becomes cap * tanh(s / cap); 0: no cap
    Rotary rotary;
    float* scratch;  // [scratch_floats()]

    EDGEDEC_INLINE int64_t stride() const { return (past + tokens + kKeyBlock - 1) / kKeyBlock * kKeyBlock; }
    // Room for queries and results, then twice for scores.
    EDGEDEC_INLINE int64_t scratch_floats() const { return kRows * (2 * layout.head_dim + 2 * stride()); }
};

// A whole pass. The constructor appends its rows to the cache; then the tasks may run in any order on any threads.
class AttentionPass {
  public:
    // `block` has everything except head, first, count and scratch. `path` must be able to run here.
    AttentionPass(const Path& path, const AttentionRows& rows, const AttentionBlock& block);
    int64_t tasks() const { return block_.layout.kv_heads * blocks_; }
    void run(int64_t task) const;

  private:
    const Path& path_;
    AttentionBlock block_;
    int64_t blocks_;
};

// Returns the reason why the numbers of a pass are invalid, or null.
const char* attention_problem(const AttentionRows& rows, const AttentionBlock& block);

}  // namespace edgedec
