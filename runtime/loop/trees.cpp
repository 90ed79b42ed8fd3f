#include "trees.hpp"

#include <algorithm>

#include "best_first.hpp"
#include "policies.hpp"

namespace edgedec {

void Tree::path_to(int32_t node, Tokens& path) const {
    path.clear();
    for (; node > 0; node = parents[static_cast<size_t>(node)]) path.push_back(tokens[static_cast<size_t>(node)]);
    std::reverse(path.begin(), path.end());
}

const Tree& Growth::grow(Policy policy, Text text, int64_t nodes, int64_t depth, Levels levels, const Measured& measured,
                         const double* costs) {
    text_ = text;
    costs_ = costs;
    calls_ = 0;
    tree_.tokens.assign(1, text.ids[text.length - 1]);
    tree_.parents.assign(1, -1);
    depths_.assign(1, 0);
    children_.assign(1, {});
    if (!draft_ || nodes < 2 || depth < 1) return tree_;
    switch (policy) {
        case Policy::chain: chain(std::min(nodes, depth + 1)); break;
        case Policy::levels: by_levels(nodes, levels); break;
        case Policy::best_first: best_first(nodes, depth); break;
        case Policy::delayed: grow_delayed(*this, nodes, depth, measured); break;
        case Policy::hardware: grow_hardware(*this, nodes, depth, measured, costs); break;
    }
    return tree_;
}

void Growth::expand(const Tokens& nodes, int64_t most) {
    if (!calls_++) draft_->meet(text_, costs_);  // a draft that is not asked does not read the text
    asked_.clear();
    for (const int32_t node : nodes) {
        Children& children = children_[static_cast<size_t>(node)];
        children = {};
        children.expanded = true;
        if (depth(node) < draft_->depth) asked_.push_back(node);
    }
    if (asked_.empty()) return;
    draft_->expand(text_, tree_, asked_, guesses_);
    for (size_t at = 0; at < asked_.size(); ++at) {
        Guesses& guesses = guesses_[at];
        if (coupling_ != Coupling::none && guesses.size() > 1) couple(asked_[at], guesses);
        std::stable_sort(guesses.begin(), guesses.end(), [](const Guess& a, const Guess& b) { return a.prob > b.prob; });
        if (static_cast<int64_t>(guesses.size()) > most) guesses.resize(static_cast<size_t>(most));
        children_[static_cast<size_t>(asked_[at])].guesses = guesses;
    }
}

void Growth::couple(int32_t node, Guesses& guesses) {
    Tokens path;
    tree_.path_to(node, path);
    if (draft_->raw()) sampler_->sparse(guesses, text_, path);
    if (coupling_ == Coupling::random) sampler_->couple(guesses, dropped_ + text_.length + static_cast<int64_t>(path.size()));
}

bool Growth::add(int32_t node) {
    Children& children = children_[static_cast<size_t>(node)];
    if (!(children.reach() > 0)) return false;
    tree_.tokens.push_back(children.guesses[children.next++].id);
    tree_.parents.push_back(node);
    depths_.push_back(depth(node) + 1);
    children_.emplace_back();
    return true;
}

void Growth::cut(int64_t nodes) {
    tree_.tokens.resize(static_cast<size_t>(nodes));
    tree_.parents.resize(static_cast<size_t>(nodes));
    depths_.resize(static_cast<size_t>(nodes));
    children_.resize(static_cast<size_t>(nodes));
}

void Growth::chain(int64_t nodes) {
    for (int32_t node = 0; node < nodes - 1; ++node) {
        expand({node}, 1);
        if (!add(node)) return;
    }
}

void Growth::by_levels(int64_t nodes, Levels levels) {
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
        expand(inner, nodes - size());
        here.clear();
        for (; places < end; ++places) {
            const int32_t parent = above[static_cast<size_t>(*places)];
            const bool added = parent >= 0 && size() < nodes && add(parent);
            here.push_back(added ? static_cast<int32_t>(size()) - 1 : -1);
        }
        above = here;
    }
}

void Growth::best_first(int64_t nodes, int64_t depth) {
    const std::vector<double> factors(static_cast<size_t>(depth), 1.0);
    BestFirst(*this, nodes, depth, factors, false).run();
}

int32_t verify(Sampler& sampler, const Tree& tree, const LogitRows& rows, Text text, int64_t position, Tokens& path,
               std::vector<TopTokens>* tops) {
    path.assign(1, 0);
    Tokens tokens;
    if (tops) tops->clear();
    while (true) {
        const int32_t node = path.back();
        const LogitRow row = rows.row(node);
        const int32_t token = sampler.token(row, text, tokens, position + static_cast<int64_t>(tokens.size()));
        if (tops) {
            tops->emplace_back();
            sampler.likeliest(row, tops->back());
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
