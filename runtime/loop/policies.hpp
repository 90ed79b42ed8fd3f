// The tree policies `delayed` and `hardware` with chosen children. The definitions are Python's: runtime/trees/delayed.py,
// runtime/trees/_selector.py and runtime/trees/hardware.py.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "best_first.hpp"
#include "trees.hpp"

namespace edgedec {

// The estimates of `delayed` (`Selector` of _selector.py).
class Selector {
  public:
    // Sets `chances`, which has the measured acceptance of each rank, to the chances of a node's children.
    void estimate(const Growth::Children& children, double* chances, int64_t ranks);

  private:
    double means_[2] = {0.8, -1.05};  // running means of logit(q) of the first child and of all others
};

using ClockFunction = double (*)();

// The measurements of `hardware`, over many rounds.
class HardwareMemory {
  public:
    explicit HardwareMemory(ClockFunction clock) : clock_(clock) {}

    double now() const;  // in seconds

    // Returns the factors of the draft's probabilities by depth of the parent: measured over predicted acceptance.
    std::vector<double> factors(const Measured& measured, int64_t depth);

    // Returns the expected duration of a call of the draft, in seconds.
    double call_seconds() const;

    // Learns the duration of a call and the acceptance that the draft predicted for this round's tree.
    void learn(const Growth& growth, const BestFirst& search, double seconds);

  private:
    ClockFunction clock_;                            // null: the steady clock
    std::deque<double> calls_;                       // mean seconds of a call, by round
    double decay_ = 1.0;                             // factor for the expected duration of a call
    std::vector<double> predicted_, parent_values_;  // by depth: sums of the values of first guesses, and of their parents
};

// The values that a policy keeps from round to round.
struct TreeMemory {
    explicit TreeMemory(ClockFunction clock) : hardware(clock) {}

    Selector selector;
    HardwareMemory hardware;
};

void grow_delayed(Growth& growth, int64_t nodes, int64_t depth, const Measured& measured);

// `costs` has the seconds of a pass over each number of rows; null, or 0 for one row: they are not known.
void grow_hardware(Growth& growth, int64_t nodes, int64_t depth, const Measured& measured, const double* costs);

}  // namespace edgedec
