// Rounds of texts: grow a tree for each, run all trees in one pass, accept a path of each, and commit it. The definition is
// Python's: runtime/rounds/round.py and runtime/engine/engine.py.
#pragma once

#include <cstdint>

#include "drafts.hpp"
#include "sampling.hpp"
#include "trees.hpp"

namespace edgedec {

constexpr int64_t kMostNodes = 64;   // nodes of a tree, so that a row of its mask is one word
constexpr int64_t kMostRounds = 32;  // rows of the results of a text

enum class Stop : int32_t {
    limit = 0,     // the number of rounds, tokens or seconds was reached, or an end token was written
    rows = 1,      // the text is full, or its blocks have no room for the next tree
    failed = 2,    // `run` failed
    no_token = 3,  // a row's logits give no token
    unmoved = 4,   // `move` or `commit` failed
};

// The type of the stored numbers of the embedding.
enum class Stored : int64_t { int8 = 0, float32 = 1, bfloat16 = 2, float16 = 3, ternary = 4 };

constexpr int64_t kMostPlanes = 3;  // planes of a ternary embedding

// A target's inputs and outputs, as `TargetArguments` of runtime/loop/inputs.py lays them out. Arrays belong to the caller.
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
    // Runs a pass over this many rows, of which so many have logits; 0 is success (edgedec_session_run of the kernels).
    int32_t (*run)(void* session, int64_t rows, int64_t results);
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
};

// A text and the results of its rounds, as `TextArguments` of runtime/loop/rounds.py lays them out.
struct TextArguments {
    // The text, with room for `positions` + 1 ids. All but the last token are in the cache.
    int32_t* text;
    int64_t length, positions;
    // The blocks of the sequence, [kinds][block_stride].
    const int32_t* blocks;
    int64_t held;
    int64_t slot;  // the slot of its recurrent states, if the model has such states
    // Guesses and verification.
    Draft* draft;
    int64_t policy, nodes, depth;
    Levels levels;
    const SamplingOptions* sampling;
    int64_t dropped;
    // The end: after one of these ids, or after so many tokens, no further round begins for any text.
    const int32_t* ends;
    int64_t end_count, most_tokens;
    // Results by round: nodes of the tree, nodes of the path, tree and path themselves [kMostRounds, result_nodes], and seconds.
    int64_t result_nodes;
    int32_t* tree_sizes;
    int32_t* path_sizes;
    int32_t* tokens;
    int32_t* parents;
    int32_t* path;
    double* draft_seconds;
    double* verify_seconds;
    double* commit_seconds;
    int64_t rounds;   // number of finished rounds
    int64_t stop;     // a `Stop`
    int64_t bad_row;  // with `Stop::no_token`: the row of the logits
};

// Rounds of texts that share their passes, as `RoundsArguments` of runtime/loop/rounds.py lays them out.
struct RoundsArguments {
    const TargetArguments* target;
    TextArguments* const* texts;  // texts with common blocks are neighbours
    int64_t count, most_rounds;
    double most_seconds;
    const int32_t* pause;  // no further round begins once it is not 0; another thread may write it; null: none does
    double* pass_seconds;  // result by round [kMostRounds]
    double* pass_began;    // the steady clock's seconds at the beginning of the pass of each round [kMostRounds]
};

// Runs rounds until one of the bounds of the call, or of a text, is reached.
void run_rounds(const RoundsArguments& arguments);

}  // namespace edgedec
