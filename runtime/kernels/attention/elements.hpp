// The elements of the cache: numbers, and pairs of codes of 4 bits.
#pragma once

#include "attention/attention.hpp"

namespace edgedec {
namespace {

constexpr int kNibbleBias = 8;          // number that is added to a code when it is stored

// Two codes of 4 bits.
struct Nibbles {
    uint8_t both;
};

// A place among codes of 4 bits, as a pointer is one among numbers.
struct NibblePlace {
    const uint8_t* bytes;
    int64_t at;

    EDGEDEC_INLINE NibblePlace operator+(int64_t count) const { return {bytes, at + count}; }
    EDGEDEC_INLINE NibblePlace& operator+=(int64_t count) { return at += count, *this; }
    EDGEDEC_INLINE const uint8_t* byte() const { return bytes + nibble_byte(at); }
    EDGEDEC_INLINE float code() const { return static_cast<float>((*byte() >> nibble_shift(at) & 15) - kNibbleBias); }
    // The 8 bytes of the 16 codes among which this one is.
    EDGEDEC_INLINE int64_t group() const {
        int64_t both;
        __builtin_memcpy(&both, bytes + (at >> 4 << 3), sizeof both);
        return both;
    }
};

// The places of elements T in the cache.
template <class T>
struct Places {
    using Type = const T*;
    EDGEDEC_INLINE static Type first(const uint8_t* bytes) { return reinterpret_cast<const T*>(bytes); }
    EDGEDEC_INLINE static const void* address(Type place) { return place; }
};

template <>
struct Places<Nibbles> {
    using Type = NibblePlace;
    EDGEDEC_INLINE static Type first(const uint8_t* bytes) { return {bytes, 0}; }
    EDGEDEC_INLINE static const void* address(Type place) { return place.byte(); }
};

}  // namespace
}  // namespace edgedec
