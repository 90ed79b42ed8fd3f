// The drafter `model`: a second, smaller model. The definition is Python's: runtime/drafters/model.py.
#pragma once

#include <cstdint>
#include <memory>

#include "drafts.hpp"
#include "target.hpp"

namespace edgedec {

// A draft model and its cache, as `ModelArguments` of runtime/loop/model.py lays them out. Arrays belong to the caller, who may
// change the numbers between calls of the library.
struct ModelArguments {
    const TargetArguments* target;  // without recurrent states
    const int32_t* blocks;          // the cache's table, [kinds][block_stride]
    int64_t held;                   // its blocks that may be written to
    int32_t* tokens;                // the tokens of the committed rows
    int64_t length;                 // number of committed rows, to which all of them can go back
    int64_t end;                    // number of positions at which guesses may be made
    int64_t ids;                    // number of ids that both models and the tokenizer have
    int64_t rows;                   // most rows of a pass, at most kMaskBits
    int64_t loose;                  // rows of the last pass that are not committed; 0: they are lost
    double pass_seconds;            // seconds of all passes so far
};

std::unique_ptr<Draft> open_model(ModelArguments* arguments, int64_t vocab, int64_t depth);

}  // namespace edgedec
