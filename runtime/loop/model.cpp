#include "model.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace edgedec {
namespace {

constexpr int64_t kFar = int64_t{1} << 30;  // a depth greater than that of any tree
constexpr size_t kLikeliest = kMostGuesses;  // tokens of a distribution

// Returns the length of the chain at the beginning whose rows are ancestors of all rows after it.
size_t stem(const Tokens& above) {
    int64_t length = static_cast<int64_t>(above.size());
    for (size_t at = 0; at < above.size(); ++at)
        if (above[at] != static_cast<int32_t>(at) - 1) length = std::min<int64_t>(length, above[at] + 1);
    return static_cast<size_t>(length);
}

// Finds the likeliest tokens of a row of logits; of equal ones, those with the lower ids.
class Likeliest {
  public:
    void add(const float* row, int64_t size) {
        constexpr int64_t kLanes = 32;
        best_.clear();
        for (int64_t at = 0; at < size; at += kLanes) {
            const int64_t end = std::min(size, at + kLanes);
            float most = -std::numeric_limits<float>::infinity();
            int32_t bad = 0;
            for (int64_t id = at; id < end; ++id) {
                most = row[id] > most ? row[id] : most;
                bad |= row[id] != row[id];
            }
            if (bad) throw DraftFailed();
            if (best_.size() == kLikeliest && !(most > best_.back().prob)) continue;
            for (int64_t id = at; id < end; ++id) insert({static_cast<int32_t>(id), row[id]});
        }
    }

    // Sets `guesses` to the distribution of the tokens.
    void weigh(Guesses& guesses) const {
        guesses.clear();
        const float most = best_.front().prob;
        if (!std::isfinite(most)) throw DraftFailed();
        float total = 0.0f;
        for (const Guess& one : best_) {
            guesses.push_back({one.id, std::exp(one.prob - most)});
            total += guesses.back().prob;
        }
        for (Guess& one : guesses) one.prob /= total;
        while (!(guesses.back().prob > 0)) guesses.pop_back();
    }

  private:
    void insert(Guess one) {
        if (best_.size() == kLikeliest) {
            if (!(one.prob > best_.back().prob)) return;
            best_.pop_back();
        }
        const auto after = std::upper_bound(best_.begin(), best_.end(), one, [](const Guess& a, const Guess& b) { return a.prob > b.prob; });
        best_.insert(after, one);
    }

    Guesses best_;  // logits in the place of probabilities, descending
};

class ModelDraft final : public Draft {
  public:
    ModelDraft(ModelArguments* arguments, int64_t vocab, int64_t depth) : Draft(vocab, depth), model_(*arguments) {}

    void expand(Text text, const Tree& tree, const Tokens& nodes, std::vector<Guesses>& guesses) override {
        guesses.assign(nodes.size(), {});
        if (!model_.loose) loose_.clear();
        const int64_t past = text.length - 1, deepest = std::min(depth, model_.end - past);
        measure(tree);
        Tokens answered;
        for (const int32_t node : nodes)
            if (depths_[static_cast<size_t>(node)] < deepest) answered.push_back(node);
        if (answered.empty()) return;
        arrange(tree, answered);
        const int32_t first = place_[static_cast<size_t>(*std::min_element(answered.begin(), answered.end()))];
        const size_t lead = std::min(stem(above_), static_cast<size_t>(first));  // nodes above all others, without logits
        Tokens path;
        for (size_t at = 1; at < lead; ++at) path.push_back(tree.tokens[static_cast<size_t>(order_[at])]);
        keep({text.ids, past + std::min<int64_t>(static_cast<int64_t>(lead), 1)}, path);
        if (model_.length <= past && !has_ids(text, model_.length)) return;
        catch_up({text.ids, past}, static_cast<int64_t>(order_.size()));
        run({text.ids, past}, tree, answered);
        for (size_t at = 0, row = 0; at < nodes.size(); ++at) {
            if (depths_[static_cast<size_t>(nodes[at])] >= deepest) continue;
            likeliest_.add(model_.target->logits + static_cast<int64_t>(row++) * model_.target->vocab, model_.ids);
            likeliest_.weigh(guesses[at]);
        }
    }

    void observe(const Tokens&, int32_t, const std::vector<TopTokens>&) override {}  // the next text shows it
    bool raw() const override { return true; }
    bool batches() const override { return true; }

  private:
    // A row of the last pass that is not committed: its parent in that pass, or -1, and its token.
    struct Row {
        int32_t parent, token;
    };

    // Sets the depth of each node; it is kFar or more for tokens that the draft lacks, and below them.
    void measure(const Tree& tree) {
        depths_.assign(1, 0);
        for (size_t node = 1; node < tree.tokens.size(); ++node) {
            const int32_t token = tree.tokens[node];
            depths_.push_back(0 <= token && token < model_.ids ? depths_[static_cast<size_t>(tree.parents[node])] + 1 : kFar);
        }
    }

    // Sets `order_` to the nodes and all their ancestors in ascending order, `place_` to the place of each node there, and `above_`
    // to the places of their parents.
    void arrange(const Tree& tree, const Tokens& nodes) {
        place_.assign(tree.tokens.size(), -1);
        for (int32_t node : nodes)
            for (; node >= 0 && place_[static_cast<size_t>(node)] < 0; node = tree.parents[static_cast<size_t>(node)])
                place_[static_cast<size_t>(node)] = 0;
        order_.clear();
        above_.clear();
        for (size_t node = 0; node < place_.size(); ++node) {
            if (place_[node] < 0) continue;
            place_[node] = static_cast<int32_t>(order_.size());
            order_.push_back(static_cast<int32_t>(node));
            above_.push_back(node ? place_[static_cast<size_t>(tree.parents[node])] : -1);
        }
    }

    bool has_ids(Text text, int64_t from) const {
        return std::all_of(text.ids + from, text.ids + text.length, [&](int32_t id) { return 0 <= id && id < model_.ids; });
    }

    // Makes the cache the longest prefix of `text` and `path` that needs no pass.
    void keep(Text text, const Tokens& path) {
        const int64_t held = model_.length;
        const int64_t most = std::min(held, text.length);
        int64_t kept = std::mismatch(text.ids, text.ids + most, model_.tokens).first - text.ids;
        if (kept == text.length)
            for (const int32_t token : path) {
                if (kept == held || model_.tokens[kept] != token) break;
                ++kept;
            }
        model_.length = kept;
        if (kept < held) {
            lose();
            return;
        }
        Tokens nodes;
        int32_t row = -1;
        const auto take = [&](int32_t token) {
            row = find(row, token);
            if (row < 0) return false;
            model_.tokens[kept + static_cast<int64_t>(nodes.size())] = token;
            nodes.push_back(row);
            return true;
        };
        bool goes_on = true;
        for (int64_t at = kept; goes_on && at < text.length; ++at) goes_on = take(text.ids[at]);
        for (auto at = static_cast<size_t>(std::max<int64_t>(0, kept - text.length)); goes_on && at < path.size(); ++at)
            goes_on = take(path[at]);
        commit(nodes);
    }

    // Returns the row of the last pass that follows a row with a token; -1 if there is none.
    int32_t find(int32_t parent, int32_t token) const {
        for (auto row = static_cast<int32_t>(loose_.size()); row-- > parent + 1;) {
            const Row& one = loose_[static_cast<size_t>(row)];
            if (one.parent == parent && one.token == token) return row;
        }
        return -1;
    }

    void commit(const Tokens& nodes) {
        if (nodes.empty()) return;
        if (!commit_path(*model_.target, model_.blocks, model_.held, -1, model_.length, nodes)) throw DraftFailed();
        model_.length += static_cast<int64_t>(nodes.size());
        lose();
    }

    void lose() {
        loose_.clear();
        model_.loose = 0;
    }

    // Runs rows of the text until the rest and `more` rows fit into one pass.
    void catch_up(Text text, int64_t more) {
        while (model_.length < text.length && text.length - model_.length + more > model_.rows) {
            const int64_t begin = model_.length, end = std::min(text.length, begin + model_.rows);
            tokens_.assign(text.ids + begin, text.ids + end);
            parents_.clear();
            Tokens nodes;
            for (int32_t row = 0; row < end - begin; ++row) {
                parents_.push_back(row - 1);
                nodes.push_back(row);
            }
            submit({static_cast<int32_t>(end - begin) - 1});
            std::copy(tokens_.begin(), tokens_.end(), model_.tokens + begin);
            commit(nodes);
        }
    }

    // Runs the rows of the text that are left, and the nodes of `order_` that the cache lacks. Nodes in `answered` get logits.
    void run(Text text, const Tree& tree, const Tokens& answered) {
        const auto before = static_cast<int32_t>(text.length - model_.length);  // negative: the cache has so many rows of the tree
        const auto begin = static_cast<size_t>(std::max<int32_t>(0, -before));
        tokens_.assign(text.ids + std::min(model_.length, text.length), text.ids + text.length);
        parents_.clear();
        for (int32_t row = 0; row < before; ++row) parents_.push_back(row - 1);
        for (size_t at = begin; at < order_.size(); ++at) {
            tokens_.push_back(tree.tokens[static_cast<size_t>(order_[at])]);
            parents_.push_back(std::max(-1, above_[at] + before));
        }
        Tokens results;
        for (const int32_t node : answered) results.push_back(place_[static_cast<size_t>(node)] + before);
        submit(results);
        for (size_t row = 0; row < tokens_.size(); ++row) loose_.push_back({parents_[row], tokens_[row]});
    }

    // Runs a pass over `tokens_`, and loses the rows of the pass before it.
    void submit(const Tokens& results) {
        const auto rows = static_cast<int64_t>(tokens_.size());
        lose();
        if (rows > model_.rows || model_.length + rows > model_.held * model_.target->block_rows) throw DraftFailed();
        TargetPass pass(*model_.target, rows);
        pass.add({tokens_, parents_, model_.length, model_.blocks, -1});
        const auto began = std::chrono::steady_clock::now();
        if (!pass.submit(&results) || !pass.wait()) throw DraftFailed();
        model_.pass_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        model_.loose = rows;
    }

    ModelArguments& model_;
    Likeliest likeliest_;
    std::vector<Row> loose_;
    std::vector<int64_t> depths_;
    Tokens order_, above_, place_, tokens_, parents_;
};

}  // namespace

std::unique_ptr<Draft> open_model(ModelArguments* arguments, int64_t vocab, int64_t depth) {
    return std::make_unique<ModelDraft>(arguments, vocab, depth);
}

}  // namespace edgedec
