// The writing of new rows of keys and values to the cache over the vectors of a path, and the rotary embedding.
#pragma once

#include "attention/attention.hpp"
#include "attention/elements.hpp"
#include "rows/exp_tile.hpp"

namespace edgedec {
namespace {

constexpr float kMostHalf = 65504.0f;   // largest float16
constexpr float kMostNibble = 7.0f;     // largest code of 4 bits

// Applies the rotary embedding. Each product and each sum is rounded, as in NumPy.
inline void rotate(const float* __restrict x, int64_t size, const Rotary& rotary, int64_t position, float* __restrict out) {
    const int64_t half = size / 2;
    if (!rotary.pairs) {
        for (int64_t i = 0; i < size; ++i) out[i] = x[i];
        return;
    }
    const float *__restrict cos = rotary.cos + position * half, *__restrict sin = rotary.sin + position * half;
    if (rotary.pairs == 1) {  // a loop of its own, which the compiler turns into vectors
        for (int64_t i = 0; i < half; ++i) {
            out[i] = x[i] * cos[i] - x[i + half] * sin[i];
            out[i + half] = x[i + half] * cos[i] + x[i] * sin[i];
        }
        return;
    }
    for (int64_t i = 0; i < half; ++i) {
        out[2 * i] = x[2 * i] * cos[i] - x[2 * i + 1] * sin[i];
        out[2 * i + 1] = x[2 * i + 1] * cos[i] + x[2 * i] * sin[i];
    }
}

template <class Lanes>
void to_half(const float* x, int64_t size, uint16_t* out) {
    for (int64_t i = 0; i < size; i += Lanes::kWidth) {  // both arrays have room for a whole last vector
        const auto below = Lanes::min(Lanes::broadcast(kMostHalf), Lanes::load(x + i));
        Lanes::store_half(out + i, Lanes::max(Lanes::broadcast(-kMostHalf), below));
    }
}

template <class T>
void store_row(T* keys, T* values, const T* key, const T* value, int64_t size, int64_t slot, bool by_rows) {
    const auto bytes = static_cast<size_t>(size) * sizeof(T);
    T* column = keys + slot / kKeyBlock * kKeyBlock * size + slot % kKeyBlock;
    if (by_rows) __builtin_memcpy(keys + slot * size, key, bytes);
    else
        for (int64_t d = 0; d < size; ++d) column[d * kKeyBlock] = key[d];
    __builtin_memcpy(values + slot * size, value, bytes);
}

// Rounds a row to codes of 4 bits, each in a byte of its own and plus kNibbleBias, and returns the scale absmax / 7. Both arrays
// have room for a whole last vector of 16, and `x` has zeros there.
template <class Lanes>
float to_nibbles(const float* x, int64_t size, uint8_t* codes) {
    using Type = typename Lanes::Type;
    constexpr int64_t kTogether = 16;
    Type most = Lanes::broadcast(0.0f);
    for (int64_t i = 0; i < size; i += Lanes::kWidth) {  // NaN counts as nothing
        const Type value = Lanes::load(x + i);
        most = Lanes::max(Lanes::max(value, Lanes::sub(Lanes::broadcast(0.0f), value)), most);
    }
    float parts[kTogether];
    Lanes::store(parts, most);
    for (int64_t j = 1; j < Lanes::kWidth; ++j) parts[0] = parts[j] > parts[0] ? parts[j] : parts[0];
    const float scale = parts[0] / kMostNibble;
    if (!(scale > 0.0f)) {
        __builtin_memset(codes, kNibbleBias, static_cast<size_t>((size + kTogether - 1) / kTogether * kTogether));
        return scale;
    }
    for (int64_t i = 0; i < size; i += kTogether) {
        for (int64_t j = 0; j < kTogether; j += Lanes::kWidth) {
            // A scale that is a subnormal number may give a quotient that is out of range, or NaN, which the minimum keeps.
            Type code = Lanes::div(Lanes::load(x + i + j), Lanes::broadcast(scale));
            code = Lanes::max(Lanes::broadcast(-kMostNibble), Lanes::min(Lanes::broadcast(kMostNibble), code));
            Lanes::store(parts + j, Lanes::add(code, Lanes::broadcast(kMagic)));  // half to even
        }
        uint32_t bits[kTogether];
        __builtin_memcpy(bits, parts, sizeof bits);
        for (int64_t j = 0; j < kTogether; ++j) {
            const uint32_t number = (bits[j] & 0x7FFFFFFF) > 0x7F800000 ? 0 : bits[j];  // NaN becomes 0
            codes[i + j] = static_cast<uint8_t>((number + kNibbleBias) & 15);
        }
    }
    return scale;
}

// Stores 16 codes of 4 bits at the beginning of a group.
inline void store_group(uint8_t* bytes, const uint8_t* codes) {
    for (int64_t i = 0; i < 4; ++i) {
        bytes[i] = static_cast<uint8_t>(codes[4 * i] | codes[4 * i + 2] << 4);
        bytes[4 + i] = static_cast<uint8_t>(codes[4 * i + 1] | codes[4 * i + 3] << 4);
    }
}

// Stores a row of keys and of values in codes of 4 bits; `row` is the number of elements of a stored row, a multiple of 16.
inline void store_nibbles(uint8_t* keys, uint8_t* values, const uint8_t* key, const uint8_t* value, int64_t size, int64_t row,
                          int64_t slot, bool by_rows) {
    uint8_t* block = keys + slot / kKeyBlock * kKeyBlock * row / 2;
    const int64_t column = slot % kKeyBlock;
    if (by_rows) {
        for (int64_t d = 0; d < size; d += 16) store_group(block + (column * row + d) / 2, key + d);
    } else {
        uint8_t* byte = block + nibble_byte(column);
        const int shift = nibble_shift(column);
        const auto others = static_cast<uint8_t>(0xF0 >> shift);
        for (int64_t d = 0; d < size; ++d, byte += kKeyBlock / 2) *byte = static_cast<uint8_t>((*byte & others) | key[d] << shift);
    }
    for (int64_t d = 0; d < size; d += 16) store_group(values + (slot * row + d) / 2, value + d);
}

template <class Lanes>
void append_rows(const AttentionRows& rows, int64_t head) {
    const KvLayout& at = rows.layout;
    const int64_t size = at.head_dim, width = at.kv_heads * size;
    uint8_t *const keys = rows.cache + at.keys(head), *const values = rows.cache + at.values(head);
    float key[kMostHeadDim + 16] = {};
    float value[kMostHeadDim + 16] = {};
    uint16_t half_key[kMostHeadDim + 16], half_value[kMostHeadDim + 16];
    int8_t key_codes[kMostHeadDim + 16], value_codes[kMostHeadDim + 16];
    uint8_t key_nibbles[kMostHeadDim + 16], value_nibbles[kMostHeadDim + 16];
    float *const key_scales = reinterpret_cast<float*>(rows.cache + at.key_scales(head));
    float *const value_scales = reinterpret_cast<float*>(rows.cache + at.value_scales(head));
    for (const Segment *segment = rows.segments, *last = segment + rows.segment_count; segment < last; ++segment)
        for (int64_t row = 0; row < segment->tokens; ++row) {
            const int64_t token = segment->first + row, slot = segment->slot(segment->past + row);
            const float* source = rows.values + token * width + head * size;
            rotate(rows.keys + token * width + head * size, size, rows.rotary, rows.positions[token], key);
            if (at.bits == 32) {
                store_row(reinterpret_cast<float*>(keys), reinterpret_cast<float*>(values), key, source, size, slot,
                          at.by_rows());
            } else if (at.bits == 16) {
                __builtin_memcpy(value, source, static_cast<size_t>(size) * sizeof(float));
                to_half<Lanes>(key, size, half_key);
                to_half<Lanes>(value, size, half_value);
                store_row(reinterpret_cast<uint16_t*>(keys), reinterpret_cast<uint16_t*>(values), half_key, half_value, size,
                          slot, at.by_rows());
            } else if (at.bits == 4) {
                __builtin_memcpy(value, source, static_cast<size_t>(size) * sizeof(float));
                key_scales[slot] = to_nibbles<Lanes>(key, size, key_nibbles);
                value_scales[slot] = to_nibbles<Lanes>(value, size, value_nibbles);
                store_nibbles(keys, values, key_nibbles, value_nibbles, size, at.row(), slot, at.by_rows());
            } else {
                const int64_t whole = (size + 15) / 16 * 16;
                rows.quantize(key, size, key_codes, whole, key_scales + slot);
                rows.quantize(source, size, value_codes, whole, value_scales + slot);
                store_row(reinterpret_cast<int8_t*>(keys), reinterpret_cast<int8_t*>(values), key_codes, value_codes, size,
                          slot, at.by_rows());
            }
        }
}

}  // namespace
}  // namespace edgedec
