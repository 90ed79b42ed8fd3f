// A target of the compiled loop: what it declares, and the passes that run on it. The definition is Python's:
// runtime/targets/_pass_arrays.py.
#pragma once

#include <cstdint>

#include "sampling.hpp"
#include "text.hpp"

namespace edgedec {

// The type of the stored numbers of the embedding.
enum class Stored : int64_t { int8 = 0, float32 = 1, bfloat16 = 2, float16 = 3, ternary = 4 };

constexpr int64_t kMostPlanes = 3;  // planes of a ternary embedding

// A target as the loop sees it: inputs, outputs and functions, as `TargetArguments` of runtime/loop/inputs.py lays them out. The
// loop runs the text's model and a draft model in this way, and nothing else of them is known to it. Arrays belong to the caller.
struct TargetArguments {
    // Inputs and outputs with room for `rows` rows.
    float* embed;
    int64_t width;
    int64_t* row_positions;
    int64_t* result_rows;  // rows with logits: all of a pass
    uint64_t* visible;
    int64_t* sequences;  // [rows, 2] rows of each text in the pass, and its rows in the cache
    int32_t* table;      // [kinds][table_stride] for each kind of states, and text, the block of each `block_rows` rows
    float* logits;
    int64_t vocab, rows;
    // Starts a pass over this many rows, of which so many have logits; 0 is success. After `submit` the inputs belong to the pass
    // until `wait` has returned 0; then `logits` has its results. A target without `wait` has finished when `submit` returns, as
    // edgedec_session_run of the kernels has.
    int32_t (*submit)(void* session, int64_t rows, int64_t results);
    int32_t (*wait)(void* session);
    void* session;
    // The embedding: `vocab` rows of `width` numbers of the type `stored` in a file, with scales for int8.
    int64_t file, offset, stored;
    const float* scales;
    // A ternary embedding: planes one after the other, of rows of `row_bytes` with four codes in a byte. Each `group` columns
    // have a scale in the file, float16 with `half_scales`, else float32; with `group` 0, scales[0] is the only one. With `tied`,
    // only the last plane has scales.
    int64_t planes, row_bytes, group, tied, half_scales, scales_offset;
    // The rows of a block, the kinds of states, each with tables of its own, and the entries of a kind in `table` and in the
    // tables of a text; and the function that moves rows (edgedec_kv_move of the kernels).
    int64_t block_rows, kinds, table_stride, block_stride;
    int32_t (*move)(const int64_t* numbers, int64_t count, void* cache, const int32_t* blocks, int64_t stride, int64_t held,
                    int64_t start, const int32_t* nodes, int64_t rows);
    const int64_t* cache_numbers;
    int64_t cache_count;
    void* cache;
    // Recurrent states: the slot of each text in the pass, the function that commits them (edgedec_recurrent_commit of the
    // kernels; null: the model has no such states), the numbers that describe them, and their memory: tables, then
    // `slot_count` slots that have room for `slot_rows` rows of a pass.
    int64_t* slots;
    int32_t (*commit)(const int64_t* states, int64_t count, const float* tables, int64_t table_floats, float* slot,
                      int64_t slot_floats, int64_t rows, const int32_t* nodes, int64_t node_count);
    const int64_t* state_numbers;
    int64_t state_count;
    float* states;
    int64_t table_floats, slot_floats, slot_rows, slot_count;
    // Only some targets have these; the others have null. The embedding in memory, in the place of `file`. Embeddings in
    // float64, in the place of `embed`: rounded to integers, they are those of Python. The number of ids of each row in `found_ids` [rows][found] after a
    // pass, in ascending order, which alone have logits; 0: whole rows. The seconds of the last pass in the target's own time, with
    // those of a move that `wait` has waited for. `settle` waits for a move that goes on after `move` has returned, if no pass follows.
    const uint8_t* stored_rows;
    double* wide_embed;
    const int32_t* found_ids;
    const int64_t* found;
    const double* seconds;
    void (*settle)(void* cache);
};

// Returns the logits of the last pass.
inline LogitRows logit_rows(const TargetArguments& target) {
    const int64_t found = target.found ? *target.found : 0;
    return {target.logits, target.vocab, found ? target.found_ids : nullptr, found};
}

// New rows of a sequence in a pass: a tree, or a chain, after the first `past` rows of its cache. Row i sees row i, the rows
// above it, and all rows of the cache.
struct SequenceRows {
    const Tokens& tokens;
    const Tokens& parents;  // -1: the row follows the cache
    int64_t past;
    const int32_t* blocks;  // the sequence's table, [kinds][block_stride]
    int64_t slot;           // the slot of its recurrent states, if the model has such states
};

constexpr int64_t kMaskBits = 64;  // rows of a sequence in a pass, so that a row of its mask is one word

// A pass, whose inputs are written sequence by sequence.
class TargetPass {
  public:
    // `words` are the words of a row of the masks: those of all rows of the pass.
    TargetPass(const TargetArguments& target, int64_t rows) : target_(target), words_((rows + kMaskBits - 1) / kMaskBits) {}

    // Appends a sequence of at most kMaskBits rows. Throws if its embeddings cannot be read.
    void add(const SequenceRows& sequence);

    // Starts the pass. `results` has the rows with logits in ascending order; null: all. Returns whether the target took it.
    bool submit(const Tokens* results = nullptr) const;

    // Waits for the logits. Returns whether the target succeeded.
    bool wait() const { return !target_.wait || !target_.wait(target_.session); }

  private:
    const TargetArguments& target_;
    int64_t words_, rows_ = 0, sequences_ = 0, blocks_ = 0;
};

// Makes a path of the last pass the rows after the first `past` ones of a cache. `nodes` ascend. Returns whether it succeeded.
bool commit_path(const TargetArguments& target, const int32_t* blocks, int64_t held, int64_t slot, int64_t past, const Tokens& nodes);

}  // namespace edgedec
