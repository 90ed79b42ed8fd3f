#include <algorithm>
#include <cmath>
#include <limits>

#include "policies.hpp"

namespace edgedec {
namespace {

constexpr int64_t kBranches = 5;  // maximum number of branches
constexpr float kSteps = 64;      // steps of 1 to which acceptance is rounded

// The weights of a rank, those of `CHOSEN` of _selector.py; the last ones count for all further ranks.
struct Weights {
    double bias, draft;
};
constexpr Weights kWeights[] = {{-0.39, 0.65}, {-0.02, 0.36}};
constexpr double kFarthest = 6;    // largest logit of a probability
constexpr double kMeanNodes = 64;  // number of nodes that the running means cover

double logit(double prob) {
    if (prob <= 0) return -kFarthest;
    return prob >= 1 ? kFarthest : std::min(kFarthest, std::max(-kFarthest, std::log(prob / (1 - prob))));
}

// The acceptance by depth and rank that the plans are made of.
class Rates {
  public:
    Rates(const Measured& measured, int64_t depth) : ranks_(std::min(measured.ranks, kBranches)), depth_(depth) {
        for (int64_t row = 0; row < depth; ++row)
            for (int64_t rank = 0; rank < ranks_; ++rank)
                rates_.push_back(rounded(measured.accept[row * measured.ranks + rank]));
    }

    int64_t ranks() const { return ranks_; }
    int64_t depth() const { return depth_; }
    double* row(int64_t depth) { return rates_.data() + depth * ranks_; }
    double first(int64_t depth) const { return depth < depth_ ? rates_[static_cast<size_t>(depth * ranks_)] : 0.0; }
    double at(int64_t depth, int64_t rank) const {
        return rates_[static_cast<size_t>(depth * ranks_ + std::min(rank, ranks_ - 1))];
    }

  private:
    static double rounded(float rate) { return static_cast<double>(std::nearbyint(rate * kSteps) / kSteps); }

    int64_t ranks_, depth_;
    std::vector<double> rates_;
};

using Branches = std::vector<int64_t>;  // nodes of each branch

// Returns the expected number of accepted tokens after the stem if the whole stem is accepted.
double below(int64_t stem, const Branches& branches, const Rates& rates) {
    double total = 0, left = 1;
    for (size_t rank = 0; rank < branches.size(); ++rank) {
        const double rate = rates.at(stem, static_cast<int64_t>(rank));
        double reach = left * rate;
        left *= 1 - rate;
        for (int64_t depth = stem + 1; depth <= stem + branches[rank]; ++depth) {
            total += reach;
            reach *= rates.first(depth);
        }
    }
    return total;
}

// Returns the best branches after this stem: each node goes to the branch where the text is most likely to reach it.
Branches best_branches(int64_t stem, int64_t nodes, const Rates& rates) {
    Branches branches;
    if (stem == rates.depth()) return branches;
    double left = 1;                                   // probability that all branches so far are wrong
    std::vector<double> values(1, rates.first(stem));  // value of the next node of each branch; the last branch is still empty
    for (int64_t node = stem + 1; node < nodes; ++node) {
        const auto branch = static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
        if (!(values[branch] > 0)) break;
        if (branch == branches.size()) {
            const auto rank = static_cast<int64_t>(branch);
            branches.push_back(0);
            left *= 1 - rates.at(stem, rank);
            if (rank + 1 < kBranches) values.push_back(left * rates.at(stem, rank + 1));
        }
        values[branch] *= rates.first(stem + ++branches[branch]);
    }
    return branches;
}

// Returns the most expected tokens after a stem of each length, if the whole stem is accepted.
std::vector<double> onward(int64_t nodes, const Rates& rates) {
    const int64_t longest = std::min(rates.depth(), nodes - 1);
    std::vector<double> best(static_cast<size_t>(longest) + 1, 0.0);
    for (int64_t stem = longest - 1; stem >= 0; --stem) {
        const double branch = below(stem, best_branches(stem, nodes, rates), rates);
        best[static_cast<size_t>(stem)] = std::max(branch, rates.first(stem) * (1 + best[static_cast<size_t>(stem) + 1]));
    }
    return best;
}

// Grows branches at the end of the stem, level by level.
void grow_branches(Growth& growth, int64_t nodes, int32_t stem, const Branches& branches) {
    Tokens ends(branches.size(), stem), inner;  // last node of each branch; -1: the draft had no guess after it
    for (int64_t level = 0; level < nodes; ++level) {
        const auto grows = [&](size_t rank) { return branches[rank] > level && ends[rank] >= 0; };
        inner.clear();
        for (size_t rank = 0; rank < branches.size(); ++rank)
            if (grows(rank)) inner.push_back(ends[rank]);
        if (inner.empty()) return;
        std::sort(inner.begin(), inner.end());
        if (level) growth.expand(inner, nodes - growth.size());
        for (size_t rank = 0; rank < branches.size(); ++rank)
            if (grows(rank)) ends[rank] = growth.add(ends[rank]) ? static_cast<int32_t>(growth.size()) - 1 : -1;
    }
}

}  // namespace

void Selector::estimate(const Growth::Children& children, double* chances, int64_t ranks) {
    double left = 1;
    const auto count = std::min(static_cast<int64_t>(children.guesses.size() - children.next), ranks);
    for (int64_t rank = 0; rank < count; ++rank) {
        const auto prob = static_cast<double>(children.guesses[children.next + static_cast<size_t>(rank)].prob);
        const double share = left > 0 ? std::min(1.0, prob / left) : 0.0;
        left -= prob;
        if (count == 1 && share == 1) return;  // a guess without a probability, as of n-gram drafters
        const Weights& weights = kWeights[rank > 0];
        double& mean = means_[rank > 0];
        const double deviation = logit(share) - mean;
        mean += deviation / kMeanNodes;
        chances[rank] = 1 / (1 + std::exp(-logit(chances[rank]) - weights.bias - weights.draft * deviation));
    }
}

void grow_delayed(Growth& growth, int64_t nodes, int64_t depth, const Measured& measured) {
    const Rates rates(measured, depth);
    const std::vector<double> best = onward(nodes, rates);
    for (int32_t stem = 0; stem < static_cast<int32_t>(best.size()) - 1; ++stem) {
        growth.expand({stem}, nodes - growth.size());
        if (!(growth.children(stem).reach() > 0)) return;
        Rates here = rates;
        if (measured.memory) measured.memory->selector.estimate(growth.children(stem), here.row(stem), here.ranks());
        const Branches branches = best_branches(stem, nodes, here);
        if (branches.size() > 1 && below(stem, branches, here) > here.first(stem) * (1 + best[static_cast<size_t>(stem) + 1]))
            return grow_branches(growth, nodes, stem, branches);
        growth.add(stem);
    }
}

}  // namespace edgedec
