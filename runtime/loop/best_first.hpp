// Best-first growth. The definition is Python's: runtime/trees/_best_first.py.
#pragma once

#include <cstdint>
#include <vector>

#include "trees.hpp"

namespace edgedec {

// The growth of one tree with chosen children; `hardware` overrides `goes_on`.
class BestFirst {
  public:
    // `factors` has at least `depth` numbers. If `together`, or if the draft likes that, nodes with nearly as good a bound as the
    // best one are expanded in the same call; without `goes_on` that changes the number of calls but not the tree.
    BestFirst(Growth& growth, int64_t nodes, int64_t depth, std::vector<double> factors, bool together);
    virtual ~BestFirst() = default;

    // Grows until a limit is reached, no candidate is left, or `goes_on` returns false.
    void run();

    double value(int64_t node) const { return values_[static_cast<size_t>(node)]; }
    double prob(int64_t node) const { return probs_[static_cast<size_t>(node)]; }

  protected:
    struct Entry {
        double key;     // -value of the next child, or -bound
        int64_t order;  // number of insertions before it
        int32_t node;

        bool operator<(const Entry& other) const { return key != other.key ? key < other.key : order < other.order; }
    };

    // Returns whether to continue. It is called before a node is expanded, with its children's bound as `value`.
    virtual bool goes_on(double /*value*/) { return true; }

    bool known(const Entry& entry) const { return known_[static_cast<size_t>(entry.node)] != 0; }
    double factor(int64_t depth) const { return factors_[static_cast<size_t>(depth)]; }

    Growth& growth_;
    const int64_t nodes_, depth_;
    const std::vector<double> factors_;
    std::vector<double> values_, probs_;
    std::vector<Entry> heap_;

  private:
    void expand(double bound);
    void add(int32_t node);
    void renew(int32_t node);
    void sink(size_t at, Entry entry);
    void rise(size_t at, Entry entry);

    std::vector<char> known_;
    const bool together_;
    int64_t inserted_ = 0;
};

}  // namespace edgedec
