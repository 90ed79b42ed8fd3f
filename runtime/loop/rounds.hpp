// Rounds of one text: grow a tree, run it, accept a path, commit it. The definition is Python's:
// runtime/decoders/autoregressive.py.
#pragma once

#include <cstdint>

#include "drafts.hpp"
#include "sampling.hpp"
#include "trees.hpp"

namespace edgedec {

constexpr int64_t kMostNodes = 64;  // nodes of a tree, so that a row of a mask is one word

enum class Stop : int32_t {
    limit = 0,     // the number of rounds, tokens or seconds was reached, or an end token was written
    rows = 1,      // the text is full, or its blocks have no room for the next tree
    failed = 2,    // `run` or `move` failed
    no_token = 3,  // a row's logits give no token
};

// The type of the stored numbers of the embedding.
enum class Stored : int64_t { int8 = 0, float32 = 1, bfloat16 = 2, float16 = 3 };

// Arguments and results, as `RoundsArguments` of runtime/loop/rounds.py lays them out. Arrays belong to the caller.
struct RoundsArguments {
    // The text, with room for `positions` + 1 ids. All but the last token are in the cache.
    int32_t* text;
    int64_t length, positions;
    // The target's inputs and outputs, with room for `nodes` rows.
    float* embed;
    int64_t width;
    int64_t* row_positions;
    uint64_t* visible;
    int64_t* sequence;  // [2] rows of the pass, and rows in the cache
    int32_t* table;     // block of each `block_rows` rows, for the pass
    float* logits;
    int64_t vocab;
    int32_t (*run)(int32_t rows);  // runs a pass over this many rows; 0 is success
    // The embedding: rows of `width` numbers of the type `stored` in a file, with scales for int8.
    int64_t file, offset, stored;
    const float* scales;
    // The blocks of the sequence, and the function that moves its rows (edgedec_kv_move of the kernels).
    const int32_t* blocks;
    int64_t held, block_rows;
    int32_t (*move)(const int64_t* numbers, int64_t count, void* cache, const int32_t* blocks, int64_t held, int64_t start,
                    const int32_t* nodes, int64_t rows);
    const int64_t* cache_numbers;
    int64_t cache_count;
    void* cache;
    // Guesses and verification.
    Draft* draft;
    int64_t policy, nodes, depth;
    Levels levels;
    const SamplingOptions* sampling;
    int64_t dropped;
    // The end.
    const int32_t* ends;
    int64_t end_count, most_tokens, most_rounds;
    double most_seconds;
    // Results by round: nodes of the tree, nodes of the path, tree and path themselves [most_rounds, result_nodes], and seconds.
    int64_t result_nodes;
    int32_t* tree_sizes;
    int32_t* path_sizes;
    int32_t* tokens;
    int32_t* parents;
    int32_t* path;
    double* draft_seconds;
    double* pass_seconds;
    double* verify_seconds;
    double* commit_seconds;
    int64_t rounds;    // number of finished rounds
    int64_t stop;      // a `Stop`
    int64_t bad_node;  // with `Stop::no_token`: the node
};

void run_rounds(RoundsArguments& arguments);

}  // namespace edgedec
