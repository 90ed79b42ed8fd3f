// Attention with the NEON instructions of every AArch64 CPU, which include float16 conversions and fused multiply-adds. It is
// part of both NEON paths.
#include <arm_neon.h>

#include "attention/attention_tile.hpp"
#include "rows/rows_tile.hpp"

namespace edgedec {
namespace {

struct Neon {
    using Type = float32x4_t;
    static constexpr int64_t kWidth = 4;
    static constexpr int kRowsAtOnce = 4;
    static constexpr int kSums = 16;
    static Type load(const float* x) { return vld1q_f32(x); }
    static Type load(const uint16_t* x) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x))); }
    static Type load(const int8_t* x) {
        int32_t four;
        __builtin_memcpy(&four, x, sizeof four);
        const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
    }
    static Type load(NibblePlace x) {
        const int32_t first = -2 * static_cast<int32_t>(x.at & 12);
        const int32x4_t counts = {first, first, first - 4, first - 4};
        const uint32x4_t both = vreinterpretq_u32_s64(vdupq_n_s64(x.group()));
        const uint32x4_t codes = vandq_u32(vshlq_u32(both, counts), vdupq_n_u32(15));
        return vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(codes), vdupq_n_s32(kNibbleBias)));
    }
    static float one(const float* x) { return *x; }
    static float one(const uint16_t* x) {
        __fp16 half;
        __builtin_memcpy(&half, x, sizeof half);
        return half;
    }
    static float one(const int8_t* x) { return *x; }
    static float one(NibblePlace x) { return x.code(); }
    static void store(float* to, Type x) { vst1q_f32(to, x); }
    static void store_half(uint16_t* to, Type x) { vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
    static Type broadcast(float x) { return vdupq_n_f32(x); }
    static Type fma(Type a, Type b, Type c) { return vfmaq_f32(c, a, b); }
    static Type mul(Type a, Type b) { return vmulq_f32(a, b); }
    static Type div(Type a, Type b) { return vdivq_f32(a, b); }
    static Type add(Type a, Type b) { return vaddq_f32(a, b); }
    static Type sub(Type a, Type b) { return vsubq_f32(a, b); }
    static Type min(Type a, Type b) { return vbslq_f32(vcltq_f32(a, b), a, b); }  // vminq returns NaN if either is NaN
    static Type max(Type a, Type b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
    static Type times_power(Type y, Type z) {
        return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(y), vshlq_n_s32(vreinterpretq_s32_f32(z), 23)));
    }
};

}  // namespace
}  // namespace edgedec

EDGEDEC_DEFINE_ATTENTION(neon, Neon)
EDGEDEC_DEFINE_ATTENTION(neon_dotprod, Neon)
EDGEDEC_DEFINE_ROWS(neon, Neon)
EDGEDEC_DEFINE_ROWS(neon_dotprod, Neon)
