// A table of fixed size from contexts to the tokens that followed them (`ContextTable` of runtime/drafters/_table.py).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgedec {

// The key of a context, 1 to 2**63 - 1, as `context_key` of runtime/drafters/_table.py computes it.
inline int64_t context_key(const int32_t* ids, int64_t count) {
    constexpr uint64_t kFactor = 0x9E3779B97F4A7C15u;
    uint64_t key = kFactor;
    for (int64_t at = 0; at < count; ++at) key = (key ^ static_cast<uint32_t>(ids[at])) * kFactor;
    key &= ~uint64_t{0} >> 1;
    key ^= key >> 32;
    return key ? static_cast<int64_t>(key) : 1;
}

class ContextTable {
  public:
    ContextTable(int64_t entries, int64_t width)
        : sets_(std::max<int64_t>(1, (entries + kWays - 1) / kWays)), width_(static_cast<size_t>(width)) {
        const auto rows = static_cast<size_t>(sets_ * kWays);
        ids_.assign(rows * width_, 0);
        values_.assign(rows * width_, 0.0f);
        counts_.assign(rows, 0);
        touched_.assign(rows, 0);
        keys_.assign(rows, 0);
    }

    int32_t* ids(int64_t row) { return &ids_[static_cast<size_t>(row) * width_]; }
    float* values(int64_t row) { return &values_[static_cast<size_t>(row) * width_]; }
    int32_t& count(int64_t row) { return counts_[static_cast<size_t>(row)]; }

    // Returns -1 if the context has no row.
    int64_t find(const int32_t* context, int64_t size) const {
        const int64_t key = context_key(context, size), base = base_of(key);
        for (int64_t row = base; row < base + kWays; ++row)
            if (keys_[static_cast<size_t>(row)] == key) return row;
        return -1;
    }

    int64_t claim(const int32_t* context, int64_t size) {
        int64_t row = find(context, size);
        if (row < 0) {
            const int64_t key = context_key(context, size), base = base_of(key);
            const auto ages = touched_.begin() + base;
            row = base + (std::min_element(ages, ages + kWays) - ages);
            keys_[static_cast<size_t>(row)] = key;
            std::fill_n(ids(row), width_, -1);
            std::fill_n(values(row), width_, 0.0f);
            count(row) = 0;
        }
        touched_[static_cast<size_t>(row)] = ++clock_;
        return row;
    }

  private:
    static constexpr int64_t kWays = 8;

    int64_t base_of(int64_t key) const { return key % sets_ * kWays; }

    int64_t sets_, clock_ = 0;
    size_t width_;
    std::vector<int32_t> ids_, counts_;
    std::vector<float> values_;
    std::vector<int64_t> touched_, keys_;
};

}  // namespace edgedec
