// Rounds of texts: grow a tree for each, run all trees in one pass, accept a path of each, and commit it. The definition is
// Python's: runtime/rounds/round.py and runtime/engine/engine.py.
#pragma once

#include <cstdint>

#include "drafts.hpp"
#include "follower.hpp"
#include "sampling.hpp"
#include "target.hpp"
#include "trees.hpp"

namespace edgedec {

constexpr int64_t kMostNodes = kMaskBits;  // nodes of a tree
constexpr int64_t kMostRounds = 32;  // rows of the results of a text

enum class Stop : int32_t {
    limit = 0,     // the number of rounds, tokens or seconds was reached, or an end token was written
    rows = 1,      // the text is full, or its blocks have no room for the next tree
    failed = 2,    // `run` failed
    no_token = 3,  // a row's logits give no token
    unmoved = 4,   // `move` or `commit` failed
    draft = 5,     // the draft failed
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
    int64_t policy, nodes, depth, coupling;
    Levels levels;
    Measured measured;
    // Seconds of a pass over each number of rows, the first of 0 rows, up to `nodes` and to as many as the draft prices (`auto`: its
    // depth + 1); null: not known.
    const double* pass_costs;
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
    Follower* follower;    // reads the results of each round while the next one runs; null: nobody does
    double* pass_seconds;  // result by round [kMostRounds]
    double* pass_began;    // the steady clock's seconds at the beginning of the pass of each round [kMostRounds]
};

// Runs rounds until one of the bounds of the call, or of a text, is reached.
void run_rounds(const RoundsArguments& arguments);

}  // namespace edgedec
