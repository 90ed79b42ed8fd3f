// Drafts that read the text alone: `ngram`, `copy`, `stand` and `trigram`. Their definitions are the files of these names in
// runtime/drafters.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "text.hpp"

namespace edgedec {

struct Guess {
    int32_t id;
    float prob;
};

// The target's likeliest tokens after a node, the likeliest first.
using TopTokens = std::vector<Guess>;

class Draft {
  public:
    Draft(int64_t vocab, int64_t depth) : vocab(vocab), depth(depth) {}
    virtual ~Draft() = default;

    // Prepares for guesses after `text`, which is called before `after`.
    virtual void meet(Text) {}

    // Replaces `guesses` by those after a text and a path of fewer than `depth` tokens.
    virtual void after(Text text, const Tokens& path, std::vector<Guess>& guesses) = 0;

    // Learns that `accepted`, which begins with the root, was followed by `next`. `top` has the target's likeliest tokens after
    // each accepted node; it is empty if they are not known.
    virtual void observe(const Tokens& accepted, int32_t next, const std::vector<TopTokens>& top) = 0;

    // True if `observe` makes use of `top`.
    virtual bool learns_top() const { return false; }

    const int64_t vocab, depth;

  protected:
    void certain(int32_t token, std::vector<Guess>& guesses) const {
        if (token >= 0 && token < vocab) guesses.push_back({token, 1.0f});
    }
};

constexpr int kTop = 10;         // tokens of the target that `stand` learns from after a node
constexpr int kMostGuesses = 12;  // guesses after a node

std::unique_ptr<Draft> open_ngram(int64_t vocab, int64_t positions, int64_t depth);
std::unique_ptr<Draft> open_copy(int64_t vocab, int64_t positions, int64_t depth);
std::unique_ptr<Draft> open_stand(int64_t vocab, int64_t entries, int64_t depth);
std::unique_ptr<Draft> open_trigram(int64_t vocab, int64_t entries, int64_t depth);

}  // namespace edgedec
