// Trees of guesses: their growth by the tree policies, and their verification.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "drafts.hpp"
#include "sampling.hpp"

namespace edgedec {

enum class Policy : int32_t { chain = 0, levels = 1, best_first = 2, delayed = 3, hardware = 4 };

// The places of `static`: for each level the parents of its nodes, as places in the level above.
struct Levels {
    const int32_t* sizes;
    int64_t count;
    const int32_t* places;
};

// The changes of guesses before the tree takes them: `Coupled` of runtime/coupling.py.
enum class Coupling : int32_t { none = 0, processed = 1, random = 2 };

struct TreeMemory;

// Values from earlier rounds, for `delayed` and `hardware`.
struct Measured {
    const float* accept;  // [depths, ranks], as in `TreePolicy` of runtime/protocols.py
    int64_t depths, ranks;
    TreeMemory* memory;  // may be null for `delayed`, which has no selector then
};

// A tree that grows (`Growth` of runtime/trees/_growth.py, with chosen children).
class Growth {
  public:
    // The candidates for children of a node.
    struct Children {
        Guesses guesses;  // the likeliest first
        size_t next = 0;
        bool expanded = false;

        float reach() const { return next < guesses.size() ? std::max(0.0f, guesses[next].prob) : 0.0f; }

        // Returns the sum of the probabilities of the remaining candidates.
        double rest() const {
            const auto add = [](double sum, const Guess& guess) { return sum + static_cast<double>(guess.prob); };
            return std::accumulate(guesses.begin() + static_cast<std::ptrdiff_t>(next), guesses.end(), 0.0, add);
        }
    };

    explicit Growth(Draft* draft) : draft_(draft) {}

    // Changes guesses from now on. `dropped` tokens of the sequence come before the text.
    void couple(Coupling coupling, Sampler* sampler, int64_t dropped) {
        coupling_ = coupling;
        sampler_ = sampler;
        dropped_ = dropped;
    }

    // Grows a tree of at most `nodes` nodes and `depth` levels below the root; without a draft it is a root. `costs` is that of
    // `Draft::meet`.
    const Tree& grow(Policy policy, Text text, int64_t nodes, int64_t depth, Levels levels, const Measured& measured,
                     const double* costs);

    // For the policies. Asks the draft once for the guesses after these nodes, and keeps the `most` likeliest of each.
    void expand(const Tokens& nodes, int64_t most);
    // Appends the next child of a node; returns false if there is none.
    bool add(int32_t node);
    // Keeps the first `nodes` nodes.
    void cut(int64_t nodes);

    int64_t size() const { return tree_.size(); }
    int32_t parent(int64_t node) const { return tree_.parents[static_cast<size_t>(node)]; }
    int64_t depth(int64_t node) const { return depths_[static_cast<size_t>(node)]; }
    const Children& children(int64_t node) const { return children_[static_cast<size_t>(node)]; }
    int64_t calls() const { return calls_; }  // number of calls of `expand`
    bool batches() const { return draft_->batches(); }

  private:
    void chain(int64_t nodes);
    void by_levels(int64_t nodes, Levels levels);
    void best_first(int64_t nodes, int64_t depth);

    void couple(int32_t node, Guesses& guesses);

    Draft* draft_;
    Sampler* sampler_ = nullptr;
    Coupling coupling_ = Coupling::none;
    int64_t dropped_ = 0;
    Tree tree_;
    std::vector<int64_t> depths_;
    std::vector<Children> children_;
    Text text_{};
    const double* costs_ = nullptr;
    int64_t calls_ = 0;
    Tokens asked_;
    std::vector<Guesses> guesses_;
};

// Follows the tokens at their positions until one has no node. Sets `path` to the accepted nodes and returns the next token.
// `rows` has a row for each node. `tops`, if it is not null, gets the likeliest tokens after each accepted node.
int32_t verify(Sampler& sampler, const Tree& tree, const LogitRows& rows, Text text, int64_t position, Tokens& path,
               std::vector<TopTokens>* tops);

}  // namespace edgedec
