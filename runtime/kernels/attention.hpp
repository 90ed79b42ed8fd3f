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
// One buffer holds the keys and values of all sequences. The buffer of one state has, for each key/value head, keys, values
// and, for int8, the scales of keys and of values. It is divided into blocks of 16 slots, of which each sequence has a table:
// slot s of a sequence is slot s % 16 of block blocks[s / 16]. Keys are stored as [block][dimension][16], so that a vector
// contains one dimension of neighbouring keys. Entries of a table that no query sees, because they lie outside of its window,
// may name any block: a state with a window needs no memory for them. Values are stored by rows, [block][16][dimension]. `bits` is 32 for float32, 16
// for float16 (larger numbers become 65504), or 8 for int8 codes with one float32 scale per slot, absmax / 127.
#pragma once

#include <cstdint>
#include <vector>

#include "ternary.hpp"

namespace edgedec {

constexpr int64_t kKeyBlock = 16;      // slots of a block
constexpr int64_t kMostHeadDim = 512;  // maximum head dimension
constexpr int64_t kMostPositions = int64_t{1} << 24;  // maximum slots of a sequence, and of a buffer
constexpr int kRows = 8;               // query rows of a task; one row is one query of one head

struct KvLayout {
    int64_t kv_heads, head_dim, positions;  // positions: slots of the buffer, rounded up to whole blocks
    int32_t bits;

    EDGEDEC_INLINE int64_t blocks() const { return (positions + kKeyBlock - 1) / kKeyBlock; }
    EDGEDEC_INLINE int64_t slots() const { return blocks() * kKeyBlock; }
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

// Copies slot start + nodes[i] of a sequence to its slot start + i, for every head. `nodes` must ascend.
void move_rows(const KvLayout& layout, uint8_t* cache, const int32_t* blocks, int64_t start, const int32_t* nodes,
               int64_t count);

// Copies block `from` to block `to`, for every head.
void copy_block(const KvLayout& layout, uint8_t* cache, int64_t from, int64_t to);

struct Rotary {
    int32_t pairs;  // 0: none; 1: (i, i + half); 2: (2 i, 2 i + 1)
    const float *cos, *sin;  // [context][head_dim / 2]
};

// The part of a pass that belongs to one sequence.
struct Segment {
    int64_t first, tokens;  // its rows among those of the pass
    int64_t past;           // committed slots, whose position is their number; the slots of the pass follow them
    const int32_t* blocks;  // its table, one entry for each 16 of the past + tokens slots
    int64_t shared;         // leading committed slots in the same blocks as those of the segment before; a multiple of 16

    EDGEDEC_INLINE int64_t end() const { return past + tokens; }
    EDGEDEC_INLINE int64_t table() const { return (end() + kKeyBlock - 1) / kKeyBlock; }
    EDGEDEC_INLINE int64_t slot(int64_t number) const {
        return int64_t{blocks[number / kKeyBlock]} * kKeyBlock + number % kKeyBlock;
    }
};

// The rows of a pass, which are rotated and stored, and their queries.
struct AttentionRows {
    KvLayout layout;
    uint8_t* cache;
    const Segment* segments;
    int64_t segment_count, tokens;  // segments, and rows of all of them
    int64_t context;                // bound of positions
    int64_t group;                  // query heads of a key/value head
    const float *queries;           // [tokens][kv_heads * group * head_dim]
    const float *keys, *values;     // [tokens][kv_heads * head_dim]
    float* out;                     // [tokens][kv_heads * group * head_dim]
    const int64_t* positions;       // [tokens]
    const uint64_t* visible;        // [tokens][words], bit j of a row: it sees row j of its own segment
    int64_t words;
    int64_t window, sinks;  // window 0: no window
    float scale;
    float cap;  // a score s becomes cap * tanh(s / cap); 0: no cap
    Rotary rotary;
    TokenQuantizer quantize;
};

// Query rows [first, first + count) of one key/value head, where row = token * group + head in the group, and count <= kRows.
struct AttentionBlock {
    const AttentionRows* rows;
    int64_t head, first, count;
    int64_t segment;  // segment of the first row
    int64_t stride;   // scores of a row: a multiple of 16 that is no less than the slots of any of the segments
    float* scratch;   // [scratch_floats()]

    // Room for queries and results, then twice for scores.
    EDGEDEC_INLINE int64_t scratch_floats() const { return kRows * (2 * rows->layout.head_dim + 2 * stride); }
};

// A whole pass. Its tasks may run in any order on any threads. If there is one task for each head, the task appends the head's
// rows to the cache, which it then finds in its processor's caches; otherwise the constructor appends all rows.
class AttentionPass {
  public:
    // `rows` must stay valid as long as the pass. `path` must be able to run here.
    AttentionPass(const Path& path, const AttentionRows& rows);
    int64_t tasks() const { return rows_.layout.kv_heads * static_cast<int64_t>(parts_.size()); }
    int64_t products() const { return products_; }  // of queries and keys, for each dimension and head
    void run(int64_t task) const;

  private:
    struct Part {
        int64_t first, count, segment, stride;
    };

    bool own_rows() const { return parts_.size() == 1; }

    const Path& path_;
    const AttentionRows& rows_;
    std::vector<Part> parts_;  // the same for every head
    int64_t products_ = 0;
};

// Reads the segments of a pass of `tokens` rows from [count][2] numbers (rows, committed slots), and their tables, which lie
// one after another in `blocks` [size]. Entries after those of the last row are ignored. Returns the reason why they are
// invalid, or null.
const char* read_segments(const KvLayout& layout, const int64_t* numbers, int64_t count, const int32_t* blocks, int64_t size,
                          int64_t tokens, std::vector<Segment>& segments);

// Returns the reason why the numbers of a pass are invalid, or null.
const char* attention_problem(const AttentionRows& rows);

}  // namespace edgedec
