// Recurrent states: arrays of a constant size that each row of a sequence replaces (edgedec/onnx/recurrent_layout.py).
//
// The state of a convolution, [outer][inner], holds the inputs of the rows before, the oldest first. The state of a head of the
// other operations, [outer][inner], is replaced by factor * state + left * right (an outer product), where the factor is one for
// the head, one for each row of the state, or one for each element (Decay). A pass never changes the committed states: it
// computes those after its rows in memory of its threads, and keeps what a commit needs of each row, in a slot behind the states:
// the inputs of a convolution, [inner]; or the factors [heads][factors], left vectors [groups][outer] and right vectors
// [heads][inner]. A commit replays the accepted rows by the same function, so that the bits are those of the pass. Rates of
// elements are the same for all slots, and stand in tables before the first slot.
//
// Order of the float operations, on every processor: state = (factor * state) + (left * right), no fused multiply-add; sums over
// `outer` are added in order, from 0, and sums over the taps of a convolution in order, from the bias. A row's result therefore
// depends on its path alone: not on other rows, other sequences, or threads, which share heads and rows.
#pragma once

#include <cstdint>

namespace edgedec {

constexpr int64_t kStateNumbers = 8;              // numbers that describe a state to edgedec_recurrent_commit
constexpr int64_t kMostFloats = int64_t{1} << 32;  // maximum number of floats of a slot, and of the tables

// The factors of a head's state, and what is kept of them for each row.
enum class Decay : int64_t {
    head,     // one factor
    row,      // a factor for each row of the state, [outer]
    element,  // exp(-rate * step) with a step for each column, [inner], and rates [heads][outer][inner] in the tables
};

struct RecurrentState {
    int64_t heads, groups, outer, inner;  // heads: 0 for a convolution
    int64_t offset, kept;                 // first floats of the state and of the kept rows in a slot
    int64_t decay, table;                 // a Decay; first float of the rates in the tables

    Decay kind() const { return static_cast<Decay>(decay); }
    int64_t head_floats() const { return outer * inner; }
    int64_t floats() const { return (heads ? heads : 1) * head_floats(); }
    // Floats that are kept of the factors of a head.
    int64_t factors() const { return kind() == Decay::head ? 1 : kind() == Decay::row ? outer : inner; }
    int64_t kept_width() const { return heads ? heads * (factors() + inner) + groups * outer : inner; }
    // The group whose left vector a head has.
    int64_t group(int64_t head) const { return head * groups / heads; }
    // The places of the parts of a kept row.
    int64_t factor(int64_t head) const { return head * factors(); }
    int64_t left(int64_t head) const { return heads * factors() + group(head) * outer; }
    int64_t right(int64_t head) const { return heads * factors() + groups * outer + head * inner; }
    // Returns the reason why the sizes are invalid for slots and tables of so many floats, or null.
    const char* problem(int64_t slot_floats, int64_t kept_rows, int64_t table_floats) const;
};

// Sets `to` to the state of a head after a row whose kept parts are `kept`; `from` and `to` may be the same.
void advance_state(const RecurrentState& state, int64_t head, const float* tables, const float* kept, const float* from,
                   float* to);

// out[i] = sum over o of weights[o] * (factors[o * step] * state[o][i]), where step is 0 or 1.
void read_state(const float* state, const float* factors, int64_t step, const float* weights, int64_t outer, int64_t inner,
                float* out);

// out[i] += weights[i] * x[i].
void add_products(const float* weights, const float* x, int64_t count, float* out);

// Replaces a state of a slot by that after the kept rows `nodes`, a path from the root of the pass.
void commit_state(const RecurrentState& state, const float* tables, float* slot, const int32_t* nodes, int64_t count);

}  // namespace edgedec
