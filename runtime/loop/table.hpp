// A table of fixed size from contexts to the tokens that followed them (`ContextTable` of runtime/drafters/_table.py).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgedec {

// The hash of a tuple of integers, as CPython computes it since version 3.8 (xxHash, Objects/tupleobject.c).
inline int64_t tuple_hash(const int32_t* ids, int64_t count) {
    constexpr uint64_t kFirst = 11400714785074694791u, kSecond = 14029467366897019727u, kFifth = 2870177450012600261u;
    uint64_t sum = kFifth;
    for (int64_t at = 0; at < count; ++at) {
        const int64_t lane = ids[at] == -1 ? -2 : ids[at];
        sum += static_cast<uint64_t>(lane) * kSecond;
        sum = (sum << 31) | (sum >> 33);
        sum *= kFirst;
    }
    sum += static_cast<uint64_t>(count) ^ (kFifth ^ 3527539u);
    return sum == ~uint64_t{0} ? 1546275796 : static_cast<int64_t>(sum);
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
        const int64_t key = key_of(context, size), base = base_of(key);
        for (int64_t row = base; row < base + kWays; ++row)
            if (keys_[static_cast<size_t>(row)] == key) return row;
        return -1;
    }

    int64_t claim(const int32_t* context, int64_t size) {
        int64_t row = find(context, size);
        if (row < 0) {
            const int64_t key = key_of(context, size), base = base_of(key);
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

    static int64_t key_of(const int32_t* context, int64_t size) {
        const int64_t key = tuple_hash(context, size);
        return key ? key : 1;
    }

    int64_t base_of(int64_t key) const { return ((key % sets_ + sets_) % sets_) * kWays; }  // Python's remainder

    int64_t sets_, clock_ = 0;
    size_t width_;
    std::vector<int32_t> ids_, counts_;
    std::vector<float> values_;
    std::vector<int64_t> touched_, keys_;
};

}  // namespace edgedec
