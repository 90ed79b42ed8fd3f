// Attention over one key/value cache with a fixed order of operations: the result of a query is a function of the query and
// the ordered list of visible keys and values. It does not depend on their slots, on masked neighbours, on other queries or
// on threads.
//
// Order of the float operations of one query and head, on every path (fma has one rounding):
//   score[key] = fma chain over the dimensions, from 0;  times the key's scale (int8);  times `scale`;  with a cap:
//   cap_of() in exp_tile.hpp, element by element
//   weight[key] = exp(score - largest score): exp_of() in exp_tile.hpp, element by element
//   total = sum of weights, and for each dimension an fma chain of weight (times the value's scale) and value, from 0: both
//   over the visible keys in the order of their slots;  out = chain / total
// The largest score is computed first, so no sum is rescaled, and no sum is divided into parts.
//
// One buffer holds the keys and values of all sequences. The buffer of one state has, for each key/value head, keys, values
// and, for int8, the scales of keys and of values. It is divided into blocks of 16 slots, of which each sequence has a table:
// slot s of a sequence is slot s % 16 of block blocks[s / 16]. Keys are stored as [block][dimension][16], so that a vector
// contains one dimension of neighbouring keys. Entries of a table that no query sees, because they lie outside of its window,
// may name any block: a state with a window needs no memory for them. Values are stored by rows, [block][16][dimension]. `bits`
// is 32 for float32, 16 for float16 (larger numbers become 65504), 8 for int8 codes with one float32 scale per slot,
// absmax / 127, or 4 for codes from -7 to 7 with one float32 scale per slot, absmax / 7. Codes of 4 bits are stored plus 8, and
// 16 neighbouring ones in 8 bytes: the even ones in the first four, the odd ones in the last four, each from the lowest bits
// up. A vector of them is then one broadcast word, shifted. Their rows of values are rounded up to whole groups of 16, and so
// is the number of dimensions of their keys.
//
// If queries choose the keys that they attend to (attention_select.hpp), keys are stored by rows, as values are, and each slot
// has a label of `label_bytes` bytes after the scales, [block][byte][16]. With `rank`, a stored key has this many numbers in the
// place of its elements. If values are in a file (value_store.hpp), they and their scales have no part in the buffer.
#pragma once

#include <cstdint>
#include <vector>

#include "products/ternary.hpp"

namespace edgedec {

constexpr int64_t kKeyBlock = 16;      // slots of a block
constexpr int64_t kMostHeadDim = 512;  // maximum head dimension
constexpr int64_t kMostPositions = int64_t{1} << 24;  // maximum slots of a sequence, and of a buffer
constexpr int kRows = 8;               // query rows of a task; one row is one query of one head

// The byte of code `at` among codes of 4 bits, and how far the code lies above the byte's lowest bit.
EDGEDEC_INLINE constexpr int64_t nibble_byte(int64_t at) { return (at >> 4 << 3) + ((at & 1) << 2) + ((at & 15) >> 2); }
EDGEDEC_INLINE constexpr int nibble_shift(int64_t at) { return static_cast<int>(at & 2) << 1; }

// Writes a code, plus 8, at a place among codes of 4 bits.
EDGEDEC_INLINE void put_nibble(uint8_t* bytes, int64_t at, uint8_t code) {
    uint8_t& byte = bytes[nibble_byte(at)];
    byte = static_cast<uint8_t>((byte & (0xF0 >> nibble_shift(at))) | code << nibble_shift(at));
}

struct KvLayout {
    int64_t kv_heads, head_dim, positions;  // positions: slots of the buffer, rounded up to whole blocks
    int32_t bits;
    int64_t label_bytes = 0;  // bytes of a slot; 0: no query chooses keys
    int64_t rank = 0;         // numbers of a stored key; 0: it has head_dim elements. Only with labels
    bool filed = false;       // true if values are in a file. Only with labels

    EDGEDEC_INLINE int64_t blocks() const { return (positions + kKeyBlock - 1) / kKeyBlock; }
    EDGEDEC_INLINE int64_t slots() const { return blocks() * kKeyBlock; }
    EDGEDEC_INLINE bool scaled() const { return bits <= 8; }
    EDGEDEC_INLINE int64_t row() const { return bits == 4 ? (head_dim + 15) / 16 * 16 : head_dim; }  // elements of a row
    EDGEDEC_INLINE int64_t row_bytes() const { return row() * bits / 8; }
    EDGEDEC_INLINE int64_t key_size() const { return rank ? rank : head_dim; }  // numbers of a stored key
    EDGEDEC_INLINE int64_t key_row() const { return bits == 4 ? (key_size() + 15) / 16 * 16 : key_size(); }
    EDGEDEC_INLINE int64_t key_row_bytes() const { return key_row() * bits / 8; }
    EDGEDEC_INLINE int64_t value_record() const { return row_bytes() + (scaled() ? 4 : 0); }  // bytes of a value with its scale
    EDGEDEC_INLINE int64_t key_bytes() const { return slots() * key_row_bytes(); }
    EDGEDEC_INLINE int64_t value_bytes() const { return filed ? 0 : slots() * row_bytes(); }
    EDGEDEC_INLINE int64_t scale_bytes() const { return scaled() ? slots() * 4 : 0; }
    EDGEDEC_INLINE bool by_rows() const { return label_bytes > 0; }  // true if keys are stored by rows
    EDGEDEC_INLINE int64_t value_scale_bytes() const { return filed ? 0 : scale_bytes(); }
    EDGEDEC_INLINE int64_t head_bytes() const {
        return key_bytes() + value_bytes() + scale_bytes() + value_scale_bytes() + slots() * label_bytes;
    }
    EDGEDEC_INLINE int64_t bytes() const { return kv_heads * head_bytes(); }
    EDGEDEC_INLINE int64_t keys(int64_t head) const { return head * head_bytes(); }
    EDGEDEC_INLINE int64_t values(int64_t head) const { return keys(head) + key_bytes(); }
    EDGEDEC_INLINE int64_t key_scales(int64_t head) const { return values(head) + value_bytes(); }
    EDGEDEC_INLINE int64_t value_scales(int64_t head) const { return key_scales(head) + scale_bytes(); }
    EDGEDEC_INLINE int64_t labels(int64_t head) const { return value_scales(head) + value_scale_bytes(); }
    const char* problem() const;  // the reason why the sizes are invalid, or null
};

class ValueStore;

// The part of a store that has a state's values.
struct FiledValues {
    ValueStore* store = nullptr;  // null: the values are in the cache
    size_t part = 0;

    // Returns the reason why the part is not one for this layout, or null.
    const char* problem(const KvLayout& layout) const;
};

// Copies slot start + nodes[i] of a sequence to its slot start + i, for every head. `nodes` must ascend.
void move_rows(const KvLayout& layout, uint8_t* cache, const FiledValues& filed, const int32_t* blocks, int64_t start,
               const int32_t* nodes, int64_t count);

// Copies block `from` to block `to`, for every head.
void copy_block(const KvLayout& layout, uint8_t* cache, const FiledValues& filed, int64_t from, int64_t to);

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

// Counts of keys over all queries, heads and passes, in the cache (edgedec/onnx/kv_cache.py).
struct KeyCounts {
    int64_t seen, read;  // keys that queries saw, and those that they attended to
    int64_t bytes;       // bytes of the labels that were compared, and of the keys and values that were read
    int64_t again, hits;  // keys of queries that followed the query before them in a pass of one row, and those that it read, too
    int64_t kept, fetched, fetched_bytes;  // values in a file: rows that were in memory, those that were not, and the bytes read
};

// The slots of a sequence that a head's last query attended to, of those that were alone in their passes.
struct ChosenKeys {
    int64_t position = -1;  // position of the query
    int32_t block = -1;     // first block of the sequence, which tells it from others
    std::vector<int64_t> slots;
};

// The keys that a query attends to: at most count(n) of the n that it sees (edgedec/graph/selection.py). Their first `sinks` and last
// `recent` are always among them.
struct Selection {
    int64_t keys = 0;   // 0: all keys that a query sees
    int64_t share = 0;  // in 65536ths of the keys that it sees, if that is more than `keys`
    int64_t sinks = 0, recent = 0;
    int64_t channels = 0;            // number of channels of a label
    int32_t bits = 8;                // bits of a code of a label, 8 or 4
    const int64_t* channel = nullptr;  // [kv_heads][channels]
    const float* steps = nullptr;      // [kv_heads][channels]
    int64_t kept = 0;                  // keys among the chosen ones whose importance counts, whatever the query
    const float* importance = nullptr;  // [kv_heads][1 + head_dim]: an offset, and weights of the squares of a key's elements
    KeyCounts* counts = nullptr;       // or null
    std::vector<ChosenKeys>* last = nullptr;  // [query heads], of the step before; or null

    EDGEDEC_INLINE int64_t count(int64_t visible) const {
        const int64_t part = visible * share >> 16;
        return part > keys ? part : keys;
    }
    EDGEDEC_INLINE int64_t code_bytes() const { return (channels * bits + 7) / 8; }  // the byte of the importance follows them
    EDGEDEC_INLINE int64_t label_bytes() const { return keys ? (code_bytes() + (kept ? 1 : 0) + 3) / 4 * 4 : 0; }
    const char* problem(const KvLayout& layout) const;  // the reason why the numbers are invalid, or null
};

// The labels of a head's keys in the blocks of a sequence, and the weights of their channels in the scores.
struct LabelBlocks {
    const uint8_t* labels;  // labels of the head, [block][label_bytes][16]
    int64_t label_bytes;
    const int32_t* blocks;  // [count]
    int64_t count;
    const float* weights;  // [channels]
    int64_t channels;
    int32_t bits;
    float* scores;  // [count * 16]
};

// The directions in which keys before their rotation are stored: a stored number is the product of a key and a direction.
struct KeyBasis {
    const float* directions = nullptr;  // [kv_heads][rank][head_dim]
    const float* columns = nullptr;     // the same numbers, [kv_heads][head_dim][rank]
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
    Selection select;  // only without a window
    KeyBasis basis;    // only if the layout has a rank
    FiledValues filed;
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
    int64_t products() const { return products_; }  // products of queries and keys, for each dimension and head
    void run(int64_t task) const;

  private:
    struct Part {
        int64_t first, count, segment, stride;
    };

    bool own_rows() const { return parts_.size() == 1; }
    void append(int64_t head) const;

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
