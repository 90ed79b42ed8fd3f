#include "best_first.hpp"

#include <algorithm>
#include <utility>

namespace edgedec {
namespace {

constexpr int64_t kLate = int64_t{1} << 32;  // sorts bounds after children of equal value
constexpr double kWindow = 0.5;              // minimum bound, relative to the best one, of nodes that are expanded in the same call

double product(double value, double share) { return share < 1 ? value * share : value; }

}  // namespace

BestFirst::BestFirst(Growth& growth, int64_t nodes, int64_t depth, std::vector<double> factors, bool together)
    : growth_(growth),
      nodes_(nodes),
      depth_(depth),
      factors_(std::move(factors)),
      values_(1, 1.0),
      probs_(1, 1.0),
      known_(1, 0),
      together_(together) {
    if (depth && nodes > 1) heap_.push_back({-product(1.0, factor(0)), 0, 0});
}

void BestFirst::run() {
    while (!heap_.empty() && growth_.size() < nodes_) {
        const auto [key, order, node] = heap_.front();
        if (known(heap_.front())) {
            add(node);
            continue;
        }
        if (!growth_.children(node).expanded) {
            if (!goes_on(-key)) return;
            expand(-key);
        }
        known_[static_cast<size_t>(node)] = 1;
        renew(node);
    }
}

// Expands the first node of the heap, and those with nearly as good a bound.
void BestFirst::expand(double bound) {
    std::vector<Entry> near;
    for (const Entry& entry : heap_)
        if (-entry.key >= kWindow * bound && !known(entry) && !growth_.children(entry.node).expanded) near.push_back(entry);
    std::sort(near.begin(), near.end());
    const auto room = static_cast<size_t>(together_ || growth_.batches() ? nodes_ - growth_.size() : 1);
    if (near.size() > room) near.resize(room);
    Tokens nodes;
    for (const Entry& entry : near) nodes.push_back(entry.node);
    std::sort(nodes.begin(), nodes.end());
    growth_.expand(nodes, nodes_ - growth_.size());
}

// Gives a node, which is first in the heap, its next child.
void BestFirst::add(int32_t node) {
    const auto prob = static_cast<double>(growth_.children(node).reach());
    growth_.add(node);
    const int64_t depth = growth_.depth(node);
    const double value = product(values_[static_cast<size_t>(node)], factor(depth) * prob);
    values_.push_back(value);
    probs_.push_back(prob);
    known_.push_back(0);
    renew(node);
    if (depth + 1 >= depth_) return;
    heap_.emplace_back();
    const auto child = static_cast<int32_t>(growth_.size()) - 1;
    rise(heap_.size() - 1, {-product(value, factor(depth + 1)), kLate + ++inserted_, child});
}

// Sorts a node, which is first in the heap, by its next child, or removes it if there is none.
void BestFirst::renew(int32_t node) {
    const auto reach = static_cast<double>(growth_.children(node).reach());
    if (reach > 0) {
        sink(0, {-product(values_[static_cast<size_t>(node)], factor(growth_.depth(node)) * reach), ++inserted_, node});
        return;
    }
    const Entry last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(0, last);
}

// Python's module `heapq` moves entries in this way. `hardware` adds values in the order of the heap, and the sums shall have
// the same bits.
void BestFirst::sink(size_t at, Entry entry) {
    for (size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
        if (child + 1 < heap_.size() && !(heap_[child] < heap_[child + 1])) ++child;
        heap_[at] = heap_[child];
        at = child;
    }
    rise(at, entry);
}

void BestFirst::rise(size_t at, Entry entry) {
    for (; at && entry < heap_[(at - 1) / 2]; at = (at - 1) / 2) heap_[at] = heap_[(at - 1) / 2];
    heap_[at] = entry;
}

}  // namespace edgedec
