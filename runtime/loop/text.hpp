// The text of a sequence as drafters see it: the confirmed part, a copy that can shrink, and the places of earlier pairs.
// The definition is Python's: runtime/drafters/_text.py and runtime/drafters/_places.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace edgedec {

using Tokens = std::vector<int32_t>;

// Ids that belong to the caller.
struct Text {
    const int32_t* ids;
    int64_t length;
};

// Part of the text that an outcome has confirmed (`Confirmed` of _text.py).
class Confirmed {
  public:
    Confirmed(int64_t window, int64_t slack) : window_(window), slack_(slack) {}

    int64_t meet(Text text) {
        const int64_t extra = text.length - length_;
        const bool known = extra >= 0 && ends_with_tail(text.ids, length_);
        if (known && length_ && extra <= slack_) return 0;
        length_ = text.length;
        tail_.assign(text.ids + std::max<int64_t>(0, text.length - window_), text.ids + text.length);
        return known ? extra : text.length;
    }

    // `accepted` begins with the root. Returns the tail before and the new tokens after it.
    Tokens advance(const Tokens& accepted, int32_t next) {
        if (tail_.empty() || tail_.back() != accepted[0]) {
            length_ = 0;
            tail_.assign(1, accepted[0]);
        }
        Tokens history = tail_;
        history.insert(history.end(), accepted.begin() + 1, accepted.end());
        history.push_back(next);
        if (length_) length_ += static_cast<int64_t>(accepted.size());
        const auto kept = std::min<int64_t>(window_, static_cast<int64_t>(history.size()));
        tail_.assign(history.end() - kept, history.end());
        return history;
    }

  private:
    bool ends_with_tail(const int32_t* ids, int64_t length) const {
        const int64_t begin = std::max<int64_t>(0, length - window_);
        return length - begin == static_cast<int64_t>(tail_.size()) && std::equal(tail_.begin(), tail_.end(), ids + begin);
    }

    int64_t window_, slack_, length_ = 0;
    Tokens tail_;
};

// A text followed by the path to a node (`TrackedText` of _text.py).
class TrackedText {
  public:
    TrackedText(int64_t capacity, int64_t depth)
        : ids_(static_cast<size_t>(std::max<int64_t>(2, capacity) + depth)), capacity_(std::max<int64_t>(2, capacity)) {}
    virtual ~TrackedText() = default;

    int64_t length() const { return length_; }
    int32_t id(int64_t at) const { return ids_[static_cast<size_t>(at)]; }

    void follow(Text text, const Tokens& path) {
        const int64_t half = capacity_ / 2, over = text.length - capacity_;
        const int64_t start = over > 0 ? (over + half - 1) / half * half : 0;
        if (start != start_) {
            shrink(0);
            start_ = start;
        }
        text = {text.ids + start, text.length - start};
        int64_t keep = std::min(length_, text.length);
        const int64_t same = std::mismatch(text.ids, text.ids + keep, ids_.begin()).first - text.ids;
        if (same < keep) {
            keep = same;
        } else if (keep == text.length) {
            for (const int32_t token : path) {
                if (keep == length_ || id(keep) != token) break;
                ++keep;
            }
        }
        shrink(keep);
        for (int64_t at = keep; at < text.length; ++at) append(text.ids[at]);
        for (auto at = static_cast<size_t>(std::max<int64_t>(0, keep - text.length)); at < path.size(); ++at) append(path[at]);
    }

  protected:
    void shrink(int64_t length) {
        while (length_ > length) {
            --length_;
            pop(length_);
        }
    }

    virtual void push(int64_t at) = 0;
    virtual void pop(int64_t at) = 0;

    int64_t start_ = 0;

  private:
    void append(int32_t token) {
        ids_[static_cast<size_t>(length_)] = token;
        ++length_;
        push(length_ - 1);
    }

    Tokens ids_;
    int64_t capacity_, length_ = 0;
};

// A tracked text with the earlier places of each pair of tokens (`Places` of _places.py).
class Places : public TrackedText {
  public:
    static constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

    struct Match {
        int64_t place, length;
    };

    Places(int64_t capacity, int64_t depth) : TrackedText(capacity, depth) {
        size_t slots = 1;
        while (static_cast<int64_t>(slots) < std::max<int64_t>(2, capacity)) slots *= 2;
        mask_ = slots - 1;
        head_.assign(slots, -1);
        before_.assign(static_cast<size_t>(std::max<int64_t>(2, capacity) + depth), -1);
    }

    Match longest(int64_t least, int64_t most, int64_t tries, int64_t near = kEnd) const {
        const int64_t end = length() - 1;
        int64_t best = -1, best_length = least - 1, place = end > 0 ? before(end) : -1;
        for (; place > 0 && tries; --tries, place = before(place)) {
            const int64_t reach = best_length - (best >= 0 && place >= near);
            if (place < reach || id(place - reach) != id(end - reach)) continue;
            int64_t same = 0;
            while (same < most && same <= place && id(place - same) == id(end - same)) ++same;
            if (same > reach) {
                best = place;
                best_length = same;
                if (same == most && place <= near) break;
            }
        }
        return best >= 0 ? Match{best, best_length} : Match{-1, 0};
    }

  protected:
    void push(int64_t at) override {
        if (!at) return;
        const size_t slot = this->slot(at);
        before_[static_cast<size_t>(at)] = head_[slot];
        if (at + start_ < indexed_) head_[slot] = static_cast<int32_t>(at);
    }

    void pop(int64_t at) override {
        if (at && at + start_ < indexed_) head_[slot(at)] = before_[static_cast<size_t>(at)];
    }

    int64_t indexed_ = kEnd;

  private:
    int64_t before(int64_t at) const { return before_[static_cast<size_t>(at)]; }

    size_t slot(int64_t at) const {
        const auto first = static_cast<uint64_t>(int64_t{id(at - 1)}), second = static_cast<uint64_t>(int64_t{id(at)});
        return ((first * 0x9E3779B1u + second * 0x85EBCA6Bu) >> 7) & mask_;
    }

    size_t mask_;
    Tokens head_, before_;
};

}  // namespace edgedec
