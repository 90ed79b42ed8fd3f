// Trees of guesses: their growth by the policies `chain`, `static` and `dynamic`, and their verification.
#pragma once

#include <cstdint>
#include <vector>

#include "drafts.hpp"
#include "sampling.hpp"

namespace edgedec {

enum class Policy : int32_t { chain = 0, levels = 1, best_first = 2 };

// The places of `static`: for each level the parents of its nodes, as places in the level above.
struct Levels {
    const int32_t* sizes;
    int64_t count;
    const int32_t* places;
};

// The changes of guesses before the tree takes them: `Coupled` of runtime/coupling.py.
enum class Coupling : int32_t { none = 0, processed = 1, random = 2 };

class Growth {
  public:
    explicit Growth(Draft* draft) : draft_(draft) {}

    // Changes guesses from now on. `dropped` tokens of the sequence come before the text.
    void couple(Coupling coupling, Sampler* sampler, int64_t dropped) {
        coupling_ = coupling;
        sampler_ = sampler;
        dropped_ = dropped;
    }

    // Grows a tree of at most `nodes` nodes and `depth` levels below the root; without a draft it is a root. `costs` is that of
    // `Draft::meet`.
    const Tree& grow(Policy policy, Text text, int64_t nodes, int64_t depth, Levels levels, const double* costs);

  private:
    struct Children {
        Guesses guesses;  // the likeliest first
        size_t next = 0;
        float reach() const { return next < guesses.size() ? std::max(0.0f, guesses[next].prob) : 0.0f; }
    };

    void expand(const Tokens& nodes, int64_t most);
    bool add(int32_t node);
    void chain(int64_t nodes);
    void by_levels(Levels levels);
    void best_first();

    void couple(int32_t node, Guesses& guesses);

    Draft* draft_;
    Sampler* sampler_ = nullptr;
    Coupling coupling_ = Coupling::none;
    int64_t dropped_ = 0;
    Tree tree_;
    std::vector<int64_t> depths_;
    std::vector<Children> children_;
    Text text_{};
    int64_t nodes_ = 0, depth_ = 0;
    Tokens asked_;
    std::vector<Guesses> guesses_;
};

// Follows the tokens at their positions until one has no node. Sets `path` to the accepted nodes and returns the next token.
// `logits` has a row of `vocab` for each node. `tops`, if it is not null, gets the likeliest tokens after each accepted node.
int32_t verify(Sampler& sampler, const Tree& tree, float* logits, int64_t vocab, Text text, int64_t position, Tokens& path,
               std::vector<TopTokens>* tops);

}  // namespace edgedec
