// Drafts. Their definitions are the files of their names in runtime/drafters.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "text.hpp"

namespace edgedec {

struct Guess {
    int32_t id;
    float prob;
};

using Guesses = std::vector<Guess>;

// The target's likeliest tokens after a node, the likeliest first.
using TopTokens = std::vector<Guess>;

// A tree, as `TokenTree` of runtime/protocols.py.
struct Tree {
    Tokens tokens, parents;

    int64_t size() const { return static_cast<int64_t>(tokens.size()); }

    // Sets `path` to the tokens from the root's child to `node`.
    void path_to(int32_t node, Tokens& path) const;
};

class Draft {
  public:
    Draft(int64_t vocab, int64_t depth) : vocab(vocab), depth(depth) {}
    virtual ~Draft() = default;

    // Prepares for guesses after `text`, which is called before `expand`. `costs`, which may be null, has the seconds of the
    // target's pass over each number of rows.
    virtual void meet(Text, const double* /*costs*/) {}

    // Sets the guesses after these nodes of a tree that follows a text, which are fewer than `depth` levels below its root.
    virtual void expand(Text text, const Tree& tree, const Tokens& nodes, std::vector<Guesses>& guesses) = 0;

    // Learns that `accepted`, which begins with the root, was followed by `next`. `top` has the target's likeliest tokens after
    // each accepted node; it is empty if they are not known.
    virtual void observe(const Tokens& accepted, int32_t next, const std::vector<TopTokens>& top) = 0;

    // True if `observe` makes use of `top`.
    virtual bool learns_top() const { return false; }

    // True if the last guesses are a model's own probabilities, to which no sampling option was applied.
    virtual bool raw() const { return false; }

    // True if a call of `expand` for several nodes takes hardly more time than one for a single node.
    virtual bool batches() const { return false; }

    const int64_t vocab, depth;
};

// A draft that reads the text alone.
class TextDraft : public Draft {
  public:
    using Draft::Draft;

    void expand(Text text, const Tree& tree, const Tokens& nodes, std::vector<Guesses>& guesses) override {
        guesses.resize(nodes.size());
        for (size_t at = 0; at < nodes.size(); ++at) {
            tree.path_to(nodes[at], path_);
            guesses[at].clear();
            after(text, path_, guesses[at]);
        }
    }

  protected:
    // Appends the guesses after a text and a path of fewer than `depth` tokens.
    virtual void after(Text text, const Tokens& path, Guesses& guesses) = 0;

    void certain(int32_t token, Guesses& guesses) const {
        if (token >= 0 && token < vocab) guesses.push_back({token, 1.0f});
    }

  private:
    Tokens path_;
};

// A draft's own failure: a pass of its model that failed, a logit that is no number, or no room for a row. The round runs in Python
// then, which says what is wrong.
struct DraftFailed : std::runtime_error {
    DraftFailed() : std::runtime_error("the draft model failed") {}
};

constexpr int kTop = 10;         // tokens of the target that `stand` learns from after a node
constexpr int kMostGuesses = 16;  // guesses after a node

std::unique_ptr<Draft> open_ngram(int64_t vocab, int64_t positions, int64_t depth);
std::unique_ptr<Draft> open_copy(int64_t vocab, int64_t positions, int64_t depth);
std::unique_ptr<Draft> open_stand(int64_t vocab, int64_t entries, int64_t depth);
std::unique_ptr<Draft> open_trigram(int64_t vocab, int64_t entries, int64_t depth);

}  // namespace edgedec
