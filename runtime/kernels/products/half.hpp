// Conversion of float16 in software, for paths without an instruction for it. It rounds to nearest, ties to even.
#pragma once

#include <cstdint>

namespace edgedec {
namespace {

inline float from_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    // The exponent increases by 112. A multiplication handles denormal numbers, too.
    const uint32_t shifted = magnitude << 13;
    float value;
    __builtin_memcpy(&value, &shifted, 4);
    value *= 0x1p112f;
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    if (magnitude >= 0x7c00u) bits = 0x7f800000u | shifted;  // infinity and NaN
    bits |= sign;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

inline uint16_t to_half(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    const uint32_t sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    uint32_t half;
    if (bits > 0x7f800000u) {
        half = 0x7e00u;  // NaN
    } else if (bits >= 0x477ff000u) {
        half = 0x7c00u;  // infinity, or rounded to more than 65504
    } else if (bits < 0x38800000u) {  // denormal: adding 0.5 rounds to the right number of bits
        float magnitude;
        __builtin_memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        uint32_t rounded;
        __builtin_memcpy(&rounded, &magnitude, 4);
        half = rounded - 0x3f000000u;
    } else {
        half = (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1)) >> 13;
    }
    return static_cast<uint16_t>(sign | half);
}

}  // namespace
}  // namespace edgedec
