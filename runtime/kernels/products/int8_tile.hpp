// The loops around the int8 products of a path. Each path's file includes this once and compiles it with its own instructions;
// everything is local, as in ternary_tile.hpp.
//
// Dot provides
//   Act, Codes, Sums      types of an activation (int8_t or int16_t), a vector of codes or activations, and a vector of sums
//   kOffset               codes are used as code + kOffset; kOffset times the sum of activations is subtracted at the end
//   kRegisters            sums that fit the registers, besides codes and activations
//  along a row, for OneRow; a path may compute several rows at a time with a class of the same members:
//   kStep                 columns of a vector
//   codes(row), acts(x)   kStep codes, kStep activations
//   add(sums, codes, acts), total(sums)
//  for several columns:
//   kDepth, kLanes        columns and outputs of a vector
//   pack<V>(rows, to)     packs V * kLanes outputs of kDepth columns into V vectors; V is a multiple of kLeast
//   spread(x)             kDepth activations, repeated for every output
//   add_outputs(sums, codes, acts), load(sums), store(sums, to)
//   slot(output)          index of an output among 64 stored sums
#pragma once

#include "products/int8.hpp"

namespace edgedec {
namespace {

constexpr int kGroup = 8;                // stored rows that are read side by side; with more, memory is slower
constexpr int64_t kSumCount = 4096;      // sums of a strip, which fit the L1 cache together with the activations
constexpr int64_t kActBytes = 24 << 10;  // bytes of the activations in use, which stay in the L1 cache
constexpr int64_t kUnit = 64;            // unit to which columns are rounded up; every kStep and kGroup divide it
constexpr int64_t kAhead = 2 << 10;      // distance of prefetches in bytes

EDGEDEC_INLINE constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
EDGEDEC_INLINE int64_t whole(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// Columns whose activations are in use at a time, for T tokens. It is also the distance of two tokens in `acts`.
template <class Dot, int T>
constexpr int64_t kChunk = kActBytes / (T * static_cast<int64_t>(sizeof(typename Dot::Act))) / kUnit * kUnit;

// Copies columns [start, start + count) of T tokens, and adds zeros up to whole units.
template <class Dot, int T>
void stage(const Staged& x, int64_t token, int64_t start, int64_t count, typename Dot::Act* to) {
    for (int t = 0; t < T; ++t, to += kChunk<Dot, T>) {
        const int8_t* from = x.codes + (token + t) * x.stride + start;
        for (int64_t i = 0; i < count; ++i) to[i] = from[i];
        for (int64_t i = count; i < whole(count, kUnit); ++i) to[i] = 0;
    }
}

// Converts the sums of `count` outputs from `first` on to float32. sum(i, t) is that of output first + i, with codes + kOffset.
template <uint32_t kOffset, int T, class Sum>
void finish(const Int8Matrix& w, const Staged& x, int64_t token, int64_t first, int64_t count, float* out,
            int64_t stride, Sum sum) {
    for (int t = 0; t < T; ++t) {
        float* to = out + (token + t) * stride + first;
        const float scale = x.scales[token + t];
        const uint32_t offset = kOffset * static_cast<uint32_t>(x.sums[token + t]);
        for (int64_t i = 0; i < count; ++i) {  // modulo 2^32, because with the offset a sum may overflow
            const auto exact = static_cast<int32_t>(static_cast<uint32_t>(sum(i, t)) - offset);
            const float value = static_cast<float>(exact) * scale * w.scales[first + i];
            to[i] = w.bias ? value + w.bias[first + i] : value;
        }
    }
}

// Adds the products of `count` columns of a row, whole units, and T tokens to sums[t]. The codes `ahead` bytes after them are
// prefetched.
template <class Dot, int T>
void dot(const int8_t* row, int64_t count, const typename Dot::Act* acts, int64_t ahead, int32_t* sums) {
    typename Dot::Sums total[T] = {};
    for (int64_t i = 0; i < count; i += kUnit) {
        __builtin_prefetch(row + i + ahead);
#pragma GCC unroll 4
        for (int64_t j = i; j < i + kUnit; j += Dot::kStep) {
            const typename Dot::Codes codes = Dot::codes(row + j);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) Dot::add(total[t], codes, Dot::acts(acts + t * kChunk<Dot, T> + j));
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)  // modulo 2^32, as in finish
        sums[t] = static_cast<int32_t>(static_cast<uint32_t>(sums[t]) + static_cast<uint32_t>(Dot::total(total[t])));
}

// The products of one stored row after another, so that the codes are one sequential read. With several rows at a time the
// processor's own prefetching is too slow on x86-64.
template <class Dot, int T>
struct OneRow {
    using Act = typename Dot::Act;
    static constexpr uint32_t kOffset = Dot::kOffset;
    static constexpr int kTokens = T, kRows = 1, kSums = T;
    static constexpr int64_t kColumns = kChunk<Dot, T>;  // columns whose activations are in use at a time
    static constexpr int64_t kColumnActs = 1;            // distance of two columns in `acts`
    static constexpr int64_t kActs = T * kColumns;       // size of `acts`
    static constexpr int64_t kLeastAhead = kAhead;       // least distance of prefetches in bytes

    // Copies columns [start, start + count) of all tokens, and adds zeros up to whole units.
    static void stage(const Staged& x, int64_t token, int64_t start, int64_t count, Act* acts) {
        edgedec::stage<Dot, T>(x, token, start, count, acts);
    }

    // Adds the products of `count` columns of kRows rows, whole units, to sums [kRows][kSums]. The codes `ahead` bytes after them
    // are prefetched.
    static void dot(const int8_t* const (&rows)[kRows], int64_t count, const Act* acts, int64_t ahead, int32_t (*sums)[kSums]) {
        edgedec::dot<Dot, T>(rows[0], count, acts, ahead, sums[0]);
    }
};

// Reads Rows::kRows stored rows at a time. The last row is read again where there are fewer, and the further results are dropped.
template <class Rows>
void by_rows(const Int8Matrix& w, const Staged& x, int64_t token, int64_t first, int64_t last, float* out,
             int64_t stride) {
    const int64_t ahead = whole(Rows::kLeastAhead, w.inputs);  // the same columns of a later row
    const int8_t* const end = w.codes + w.outputs * w.inputs;
    static_assert(kBlock % Rows::kRows == 0);
    alignas(64) typename Rows::Act acts[Rows::kActs];
    for (int64_t block = first; block < last; block += kBlock) {
        const int64_t outputs = smaller(kBlock, last - block);
        int32_t sums[kBlock][Rows::kSums] = {};
        for (int64_t start = 0; start < w.inputs; start += Rows::kColumns) {
            const int64_t count = smaller(Rows::kColumns, w.inputs - start), padded = whole(count, kUnit);
            if (block == first || w.inputs > Rows::kColumns) Rows::stage(x, token, start, count, acts);
            for (int64_t row = 0; row < outputs; row += Rows::kRows) {
                const int8_t* rows[Rows::kRows];
                for (int r = 0; r < Rows::kRows; ++r)
                    rows[r] = w.codes + (block + smaller(row + r, outputs - 1)) * w.inputs + start;
                // Codes that are read after a row's end belong to the next row and are multiplied by zeros.
                if (padded <= end - rows[Rows::kRows - 1]) {
                    Rows::dot(rows, padded, acts, ahead, sums + row);
                } else {
                    alignas(64) int8_t copy[Rows::kRows][kUnit] = {};
                    const int64_t before = padded - kUnit;
                    Rows::dot(rows, before, acts, ahead, sums + row);
                    for (int r = 0; r < Rows::kRows; ++r) {
                        __builtin_memcpy(copy[r], rows[r] + before, static_cast<size_t>(count - before));
                        rows[r] = copy[r];
                    }
                    Rows::dot(rows, kUnit, acts + before * Rows::kColumnActs, 0, sums + row);
                }
            }
        }
        finish<Rows::kOffset, Rows::kTokens>(w, x, token, block, outputs, out, stride,
                                             [&](int64_t i, int t) { return sums[i][t]; });
    }
}

// kGroup stored rows with 64 outputs each: in place, or copied at the end of the matrix. The next rows are prefetched.
struct Panel {
    const int8_t* codes;
    int64_t stride;

    Panel(const Int8Matrix& w, int64_t column, int64_t output, int8_t* copy) {
        codes = w.codes + column * w.outputs + output, stride = w.outputs;
        const int64_t left = w.inputs * w.outputs - (column * w.outputs + output);
        if ((kGroup - 1) * stride + kPanel <= left) {
            // Prefetch into the L2 cache, because rows at a distance of a power of two share few sets of the L1 cache.
            for (int64_t i = 0; i < kGroup; ++i) __builtin_prefetch(codes + (kGroup + i) * stride, 0, 2);
            return;
        }
        __builtin_memset(copy, 0, kGroup * kPanel);
        for (int64_t i = 0; i < kGroup && i * stride < left; ++i)
            __builtin_memcpy(copy + i * kPanel, codes + i * stride,
                             static_cast<size_t>(smaller(kPanel, left - i * stride)));
        codes = copy, stride = kPanel;
    }

    // Packs V vectors from output `first` on.
    template <class Dot, int V>
    EDGEDEC_INLINE void pack(int step, int64_t first, typename Dot::Codes* to) const {
        const int8_t* rows[Dot::kDepth];
        for (int j = 0; j < Dot::kDepth; ++j) rows[j] = codes + (step * Dot::kDepth + j) * stride + first;
        Dot::template pack<V>(rows, to);
    }
};

// Adds the products of kGroup columns x V vectors of outputs and T tokens to sums[t * stride + ...]. codes_of(step) returns the
// vectors of a step.
template <class Dot, int T, int V, class Step>
EDGEDEC_INLINE void multiply(Step codes_of, const typename Dot::Act* acts, int32_t* sums, int64_t stride) {
    typename Dot::Sums total[T][V];
    for (int t = 0; t < T; ++t)
        for (int v = 0; v < V; ++v) total[t][v] = Dot::load(sums + t * stride + v * Dot::kLanes);
    for (int step = 0; step < kGroup / Dot::kDepth; ++step) {
        const typename Dot::Codes* codes = codes_of(step);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const typename Dot::Codes act = Dot::spread(acts + t * kChunk<Dot, T> + step * Dot::kDepth);
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) Dot::add_outputs(total[t][v], codes[v], act);
        }
    }
    for (int t = 0; t < T; ++t)
        for (int v = 0; v < V; ++v) Dot::store(total[t][v], sums + t * stride + v * Dot::kLanes);
}

// Adds the products of kGroup columns x 64 outputs and T tokens. If as many sums fit the registers as pack() makes vectors,
// codes are packed into registers, otherwise into memory.
template <class Dot, int T>
void add_panel(const Panel& panel, const typename Dot::Act* acts, int32_t* sums, int64_t stride) {
    constexpr int kVectors = kPanel / Dot::kLanes, kFit = smaller(Dot::kRegisters / T, kVectors);
    constexpr int kAtOnce = kFit >= 16 ? 16 : kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
    constexpr bool kStraight = kAtOnce >= Dot::kLeast;
    typename Dot::Codes packed[kStraight ? 1 : kGroup / Dot::kDepth][kVectors];
    if constexpr (!kStraight)
        for (int step = 0; step < kGroup / Dot::kDepth; ++step) panel.pack<Dot, kVectors>(step, 0, packed[step]);
    for (int first = 0; first < kVectors; first += kAtOnce) {
        const auto codes = [&](int step) {
            if constexpr (kStraight) panel.pack<Dot, kAtOnce>(step, first * Dot::kLanes, packed[0]);
            return kStraight ? packed[0] : packed[step] + first;
        };
        multiply<Dot, T, kAtOnce>(codes, acts, sums + first * Dot::kLanes, stride);
    }
}

// Computes a strip of outputs at a time. With fewer tokens strips are wider, so that longer runs of a stored row are read.
template <class Dot, int T>
void by_columns(const Int8Matrix& w, const Staged& x, int64_t token, int64_t first, int64_t last, float* out,
                int64_t stride) {
    constexpr int64_t kStrip = kSumCount / T / kPanel * kPanel;
    alignas(64) typename Dot::Act acts[T * kChunk<Dot, T>];
    alignas(64) int32_t sums[T][kStrip];
    alignas(64) int8_t copy[kGroup * kPanel];
    for (int64_t strip = first; strip < last; strip += kStrip) {
        const int64_t outputs = smaller(kStrip, last - strip);
        __builtin_memset(sums, 0, sizeof sums);
        for (int64_t start = 0; start < w.inputs; start += kChunk<Dot, T>) {
            const int64_t count = smaller(kChunk<Dot, T>, w.inputs - start);
            if (strip == first || w.inputs > kChunk<Dot, T>) stage<Dot, T>(x, token, start, count, acts);
            for (int64_t column = 0; column < count; column += kGroup)
                for (int64_t i = 0; i < outputs; i += kPanel) {
                    const Panel panel(w, start + column, strip + i, copy);
                    add_panel<Dot, T>(panel, acts + column, &sums[0][i], kStrip);
                }
        }
        finish<Dot::kOffset, T>(w, x, token, strip, outputs, out, stride, [&](int64_t i, int t) {
            return sums[t][i / kPanel * kPanel + Dot::slot(i % kPanel)];
        });
    }
}

// Computes T tokens of a matrix in either order.
template <class Dot>
struct EitherOrder {
    template <int T>
    static void run(const Int8Matrix& w, const Staged& x, int64_t token, int64_t first, int64_t last, float* out,
                    int64_t stride) {
        if (w.by_rows)
            by_rows<OneRow<Dot, T>>(w, x, token, first, last, out, stride);
        else
            by_columns<Dot, T>(w, x, token, first, last, out, stride);
    }
};

// Computes all tokens, eight at a time.
template <class Product>
void all_tokens(const Int8Matrix& w, const Staged& x, int64_t first, int64_t last, float* out, int64_t stride) {
    int64_t token = 0;
    for (; x.tokens - token >= kTokens; token += kTokens)
        Product::template run<kTokens>(w, x, token, first, last, out, stride);
    switch (x.tokens - token) {
        case 1: return Product::template run<1>(w, x, token, first, last, out, stride);
        case 2: return Product::template run<2>(w, x, token, first, last, out, stride);
        case 3: return Product::template run<3>(w, x, token, first, last, out, stride);
        case 4: return Product::template run<4>(w, x, token, first, last, out, stride);
        case 5: return Product::template run<5>(w, x, token, first, last, out, stride);
        case 6: return Product::template run<6>(w, x, token, first, last, out, stride);
        case 7: return Product::template run<7>(w, x, token, first, last, out, stride);
        default: return;
    }
}

// With more than eight tokens, few outputs are computed at a time, so that the codes are in a cache for the second eight.
template <class Product>
void int8_products(const Int8Matrix& w, const Staged& x, int64_t first, int64_t last, float* out, int64_t stride) {
    const int64_t most = x.tokens <= kTokens ? last - first : w.by_rows ? kBlock : kSumCount / kTokens;
    for (; first < last; first += most) all_tokens<Product>(w, x, first, smaller(first + most, last), out, stride);
}

}  // namespace
}  // namespace edgedec

// Defines the function of a path for the table in dispatch.cpp.
#define EDGEDEC_DEFINE_INT8(name)                                                                        \
    namespace edgedec {                                                                                  \
    void int8_rows_##name(const Int8Matrix& w, const Staged& x, int64_t first, int64_t last, float* out, \
                          int64_t stride) {                                                              \
        int8_products<EitherOrder<Dot>>(w, x, first, last, out, stride);                                 \
    }                                                                                                    \
    }  // namespace edgedec
