#include "trees.hpp"

#include <algorithm>
#include <functional>
#include <tuple>

namespace edgedec {

void Tree::path_to(int32_t node, Tokens& path) const {
    path.clear();
    for (; node > 0; node = parents[static_cast<size_t>(node)]) path.push_back(tokens[static_cast<size_t>(node)]);
    std::reverse(path.begin(), path.end());
}

const Tree& Growth::grow(Policy policy, Text text, int64_t nodes, int64_t depth, Levels levels, const double* costs) {
    text_ = text;
    nodes_ = nodes;
    depth_ = depth;
    tree_.tokens.assign(1, text.ids[text.length - 1]);
    tree_.parents.assign(1, -1);
    depths_.assign(1, 0);
    children_.assign(1, {});
    if (!draft_ || nodes < 2 || depth < 1) return tree_;
    draft_->meet(text, costs);
    if (policy == Policy::chain) chain(std::min(nodes, depth + 1));
    else if (policy == Policy::levels) by_levels(levels);
    else best_first();
    return tree_;
}

// Asks the draft once for the guesses after these nodes, and keeps the `most` likeliest of each.
void Growth::expand(const Tokens& nodes, int64_t most) {
    asked_.clear();
    for (const int32_t node : nodes) {
        children_[static_cast<size_t>(node)] = {};
        if (depths_[static_cast<size_t>(node)] < draft_->depth) asked_.push_back(node);
    }
    if (asked_.empty()) return;
    draft_->expand(text_, tree_, asked_, guesses_);
    for (size_t at = 0; at < asked_.size(); ++at) {
        Guesses& guesses = guesses_[at];
        if (coupling_ != Coupling::none && guesses.size() > 1) couple(asked_[at], guesses);
        std::stable_sort(guesses.begin(), guesses.end(), [](const Guess& a, const Guess& b) { return a.prob > b.prob; });
        if (static_cast<int64_t>(guesses.size()) > most) guesses.resize(static_cast<size_t>(most));
        children_[static_cast<size_t>(asked_[at])] = {guesses, 0};
    }
}

void Growth::couple(int32_t node, Guesses& guesses) {
    Tokens path;
    tree_.path_to(node, path);
    if (draft_->raw()) sampler_->sparse(guesses, text_, path);
    if (coupling_ == Coupling::random) sampler_->couple(guesses, dropped_ + text_.length + static_cast<int64_t>(path.size()));
}

// Appends the next child of a node; returns false if there is none.
bool Growth::add(int32_t node) {
    Children& children = children_[static_cast<size_t>(node)];
    if (!(children.reach() > 0)) return false;
    tree_.tokens.push_back(children.guesses[children.next++].id);
    tree_.parents.push_back(node);
    depths_.push_back(depths_[static_cast<size_t>(node)] + 1);
    children_.emplace_back();
    return true;
}

void Growth::chain(int64_t nodes) {
    for (int32_t node = 0; node < nodes - 1; ++node) {
        expand({node}, 1);
        if (!add(node)) return;
    }
}

void Growth::by_levels(Levels levels) {
    Tokens above(1, 0), here, inner;
    const int32_t* places = levels.places;
    for (int64_t level = 0; level < levels.count; ++level) {
        const int32_t* end = places + levels.sizes[level];
        inner.clear();
        for (const int32_t* place = places; place < end; ++place)
            if (above[static_cast<size_t>(*place)] >= 0) inner.push_back(above[static_cast<size_t>(*place)]);
        if (inner.empty()) return;
        std::sort(inner.begin(), inner.end());
        inner.erase(std::unique(inner.begin(), inner.end()), inner.end());
        expand(inner, nodes_ - tree_.size());
        here.clear();
        for (; places < end; ++places) {
            const int32_t parent = above[static_cast<size_t>(*places)];
            const bool added = parent >= 0 && tree_.size() < nodes_ && add(parent);
            here.push_back(added ? static_cast<int32_t>(tree_.size()) - 1 : -1);
        }
        above = here;
    }
}

// `BestFirst` of runtime/trees/_best_first.py with factors of 1. Nodes with nearly as good a bound as the best one are expanded in
// the same call if the draft likes that, which changes the number of calls but not the tree.
void Growth::best_first() {
    using Entry = std::tuple<double, int64_t, int32_t>;  // -value or -bound, order of insertion, node
    constexpr int64_t kLate = int64_t{1} << 32;          // sorts bounds after children of equal value
    constexpr double kWindow = 0.5;
    std::vector<Entry> heap(1, Entry(-1.0, 0, 0));
    std::vector<double> values(1, 1.0);
    std::vector<char> known(1, 0), asked(1, 0);
    int64_t inserted = 0;
    const auto push = [&](double key, int64_t order, int32_t node) {
        heap.emplace_back(key, order, node);
        std::push_heap(heap.begin(), heap.end(), std::greater<Entry>());
    };
    const auto renew = [&](int32_t node) {
        std::pop_heap(heap.begin(), heap.end(), std::greater<Entry>());
        heap.pop_back();
        const auto share = static_cast<double>(children_[static_cast<size_t>(node)].reach());
        const double value = values[static_cast<size_t>(node)];
        if (share > 0) push(-(share < 1 ? value * share : value), ++inserted, node);
    };
    const auto ask = [&](double bound) {
        std::vector<Entry> near;
        for (const Entry& entry : heap) {
            const auto at = static_cast<size_t>(std::get<2>(entry));
            if (-std::get<0>(entry) >= kWindow * bound && !known[at] && !asked[at]) near.push_back(entry);
        }
        std::sort(near.begin(), near.end());
        const auto room = static_cast<size_t>(draft_->batches() ? nodes_ - tree_.size() : 1);
        if (near.size() > room) near.resize(room);
        Tokens nodes;
        for (const Entry& entry : near) nodes.push_back(std::get<2>(entry));
        std::sort(nodes.begin(), nodes.end());
        for (const int32_t node : nodes) asked[static_cast<size_t>(node)] = 1;
        expand(nodes, nodes_ - tree_.size());
    };
    while (!heap.empty() && tree_.size() < nodes_) {
        const auto [key, order, node] = heap.front();
        const auto at = static_cast<size_t>(node);
        if (!known[at]) {
            if (!asked[at]) ask(-key);
            known[at] = 1;
            renew(node);
            continue;
        }
        const auto share = static_cast<double>(children_[at].reach());
        add(node);
        const double value = share < 1 ? values[at] * share : values[at];
        const auto child = static_cast<int32_t>(tree_.size()) - 1;
        values.push_back(value);
        known.push_back(0);
        asked.push_back(0);
        renew(node);
        if (depths_[at] + 1 < depth_) push(-value, kLate + ++inserted, child);
    }
}

int32_t verify(Sampler& sampler, const Tree& tree, float* logits, int64_t vocab, Text text, int64_t position, Tokens& path,
               std::vector<TopTokens>* tops) {
    path.assign(1, 0);
    Tokens tokens;
    if (tops) tops->clear();
    while (true) {
        const int32_t node = path.back();
        float* row = logits + node * vocab;
        const int32_t token = sampler.token(row, vocab, text, tokens, position + static_cast<int64_t>(tokens.size()));
        if (tops) {
            tops->emplace_back();
            sampler.likeliest(row, vocab, tops->back());
        }
        int32_t child = node + 1;
        while (child < tree.size() && (tree.parents[static_cast<size_t>(child)] != node ||
                                       tree.tokens[static_cast<size_t>(child)] != token))
            ++child;
        if (child == tree.size()) return token;
        path.push_back(child);
        tokens.push_back(token);
    }
}

}  // namespace edgedec
