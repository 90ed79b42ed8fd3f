// The activations of a pass in the form that the kernels read, in memory that is kept from pass to pass.
#pragma once

#include <cstdint>
#include <vector>

#include "products/ternary.hpp"

namespace edgedec {

class Staging {
  public:
    void resize(int64_t tokens, int64_t columns) {
        tokens_ = tokens, columns_ = columns;
        stride_ = (columns + 31) / 32 * 32;  // whole lines of ternary.hpp, and whole blocks of grid.hpp
        groups_ = (columns + 31) / 32;
        codes_.resize(static_cast<size_t>(tokens * stride_));
        scales_.resize(static_cast<size_t>(tokens));
        for (auto& sums : sums_) sums.resize(static_cast<size_t>(tokens * groups_));
    }
    int64_t tokens() const { return tokens_; }
    int64_t stride() const { return stride_; }
    int8_t* codes(int64_t token) { return codes_.data() + token * stride_; }
    float* scale(int64_t token) { return scales_.data() + token; }

    // Computes the sums that a matrix of this group size needs.
    void sum(const Path& path, int64_t token, int32_t group_size) {
        const int64_t groups = group_size ? (columns_ + group_size - 1) / group_size : 1;
        path.sum(codes(token), columns_, group_size, sums_[slot(group_size)].data() + token * groups);
    }
    // Puts the codes into the order that ternary matrices need on the path. Call it after all tokens have their codes.
    void arrange(const Path& path) {
        if (path.panels && tokens_ >= kLeastPanelTokens) return arrange_panels();
        arrange_for_grid(path);
    }
    // Puts the codes into the order that matrices with evenly spaced levels need on the path, which have no panels.
    void arrange_for_grid(const Path& path) {
        if (path.order == Order::fours) arrange_fours();
        if (path.order == Order::pairs && tokens_ >= kLeastPairTokens) arrange_pairs();
    }
    Staged view(int32_t group_size) const {
        return {tokens_, stride_, codes_.data(), fours_.data(), pairs_.data(), sums_[slot(group_size)].data(),
                scales_.data(), panels()};
    }

  private:
    static constexpr int64_t kLine = 64;  // bytes of a line of the processor's cache
    static constexpr int64_t kPanelBytes = kPanelTokens * kPanelColumns;

    void arrange_fours() {
        fours_.resize(codes_.size());
        for (int64_t first = 0; first < tokens_; first += kTokens) {
            const int64_t group = tokens_ - first < kTokens ? tokens_ - first : kTokens;
            const int8_t* from = codes_.data() + first * stride_;
            int8_t* to = fours_.data() + first * stride_;
            for (int64_t four = 0; four < stride_; four += 4)
                for (int64_t t = 0; t < group; ++t, to += 4) __builtin_memcpy(to, from + t * stride_ + four, 4);
        }
    }
    void arrange_pairs() {
        constexpr int64_t kHalf = kPairColumns / 2;
        pairs_.assign(static_cast<size_t>((tokens_ + tokens_ % 2) * stride_), 0);
        for (int64_t first = 0; first < tokens_; first += kTokens) {
            const int64_t group = tokens_ - first < kTokens ? tokens_ - first : kTokens, beside = group + group % 2;
            const int8_t* from = codes_.data() + first * stride_;
            int8_t* to = pairs_.data() + first * stride_;
            for (int64_t block = 0; block < stride_; block += kPairColumns)
                for (int64_t four = block; four < block + kHalf; four += 4, to += 8 * beside)
                    for (int64_t t = 0; t < group; ++t) {
                        __builtin_memcpy(to + 8 * t, from + t * stride_ + four, 4);
                        __builtin_memcpy(to + 8 * t + 4, from + t * stride_ + four + kHalf, 4);
                    }
        }
    }

    // Rows of panels begin at a line of the cache: otherwise each is read as two lines, which takes three times as long.
    int8_t* panels() {
        const auto at = reinterpret_cast<uintptr_t>(panels_.data());
        return panels_.data() + (kLine - at % kLine) % kLine;
    }
    const int8_t* panels() const { return const_cast<Staging*>(this)->panels(); }

    void arrange_panels() {
        const int64_t steps = (stride_ + kPanelColumns - 1) / kPanelColumns;
        const int64_t blocks = (tokens_ + kPanelTokens - 1) / kPanelTokens;
        // In groups of 32 columns, whole rows are read from the middle of the last panel on.
        panels_.resize(static_cast<size_t>(blocks * steps * kPanelBytes + 2 * kLine));
        for (int64_t t = 0; t < tokens_; ++t) {
            const int8_t* from = codes_.data() + t * stride_;
            int8_t* to = panels() + t / kPanelTokens * steps * kPanelBytes + t % kPanelTokens * kPanelColumns;
            int64_t left = stride_;
            for (; left >= kPanelColumns; left -= kPanelColumns, from += kPanelColumns, to += kPanelBytes)
                __builtin_memcpy(to, from, kPanelColumns);
            if (!left) continue;
            __builtin_memset(to, 0, kPanelColumns);
            __builtin_memcpy(to, from, static_cast<size_t>(left));
        }
    }

    static size_t slot(int32_t group_size) { return static_cast<size_t>(group_size == 128 ? 3 : group_size / 32); }

    int64_t tokens_ = 0, columns_ = 0, stride_ = 0, groups_ = 0;
    std::vector<int8_t> codes_, fours_, pairs_, panels_;
    std::vector<float> scales_;
    std::vector<int32_t> sums_[4];  // for group sizes 0, 32, 64 and 128
};

// The activations of the pass that this thread leads. All kinds of matrices share them, because products are computed one after another.
inline Staging& thread_staging() {
    static thread_local Staging staging;  // kept from pass to pass to avoid allocations
    return staging;
}

}  // namespace edgedec
