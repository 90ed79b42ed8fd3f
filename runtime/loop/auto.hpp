// Observations of the candidates of the drafter `auto`. The library and Python's draft share them, so that rounds in both go on
// from the same ones.
#pragma once

#include <cstdint>
#include <memory>

#include "drafts.hpp"

namespace edgedec {

constexpr int64_t kMeasured = 9;  // calls of a candidate whose durations are kept

// A candidate, as `AutoCandidate` of runtime/loop/auto.py lays it out.
struct AutoCandidate {
    Draft* draft;
    double right;               // share of its guesses that were right
    int64_t judged;             // observations in `right`
    double seconds[kMeasured];  // durations of the last calls, that of call n at n % kMeasured
    int64_t calls;              // number of measured calls
    int64_t unseen;             // rounds since it was last asked
    int64_t read;               // length of the text when it was last asked
    int64_t guess;              // the likeliest token after the text of the last choice; -1: none
};

// The candidates and the last choice among them, as `AutoArguments` of runtime/loop/auto.py lays them out.
struct AutoArguments {
    AutoCandidate* candidates;
    int64_t count;
    int64_t drafting;   // the candidate that was chosen; -1: none
    int64_t outcomes;   // number of outcomes that were observed
    int64_t chosen;     // `outcomes` at the last choice
    double (*clock)();  // returns the time in seconds; null: the steady clock
};

// The arguments stay the caller's.
std::unique_ptr<Draft> open_auto(AutoArguments* arguments, int64_t vocab, int64_t depth);

}  // namespace edgedec
