// The second step of a rough head: its likeliest tokens are scored again with the rows of the int8 head. The definition is
// Python's: edgedec/reference/integer_profile/rescoring.py.
#pragma once

#ifdef __aarch64__
#include <arm_neon.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace edgedec {

// The int8 head, as `HeadRowArguments` of runtime/accelerator/lent_head.py lays it out, and where the accelerator writes the norm from which
// its codes follow. Without a rough head `codes` is null.
struct HeadRows {
    const int8_t* codes;      // [vocab][width]
    const int32_t* mantissa;  // [vocab]; negative: the row's codes are those of the negative row
    int64_t width, pre_shift;
    int64_t coarser;              // bits by which the unit of a rough logit exceeds that of an exact one
    int64_t norm_at, norm_bytes;  // in the output buffer; a column of all slots is as long as a row of logits
};

// Scores tokens of a row again.
class Rescoring {
  public:
    // `norm` has the row's s32 of the first column, and each next one `step` bytes further.
    Rescoring(const HeadRows& head, const uint8_t* norm, int64_t step) : head_(head), codes_(static_cast<size_t>(head.width)) {
        std::vector<int32_t> values(codes_.size());
        for (int32_t& value : values) {
            std::memcpy(&value, norm, sizeof(int32_t));
            norm += step;
        }
        int32_t most = 1;
        for (const int32_t value : values) most = std::max(most, std::abs(value));
        int bits = 0;
        while (most >> bits) ++bits;
        const int32_t mantissa = bits <= 16 ? most << (16 - bits) : most >> (bits - 16);
        const auto reciprocal = static_cast<int32_t>((int64_t{127} << 25) / mantissa);  // at most 127 * 2^10
        for (size_t at = 0; at < values.size(); ++at) codes_[at] = static_cast<int8_t>(rounded(int64_t{values[at]} * reciprocal, bits + 9));
    }

    // Returns the logit of the int8 head.
    int64_t logit(int32_t id) const {
        const int32_t sum = dot(codes_.data(), head_.codes + id * head_.width, codes_.size());
        const int64_t mantissa = head_.mantissa[id];
        const int64_t t = rounded(mantissa < 0 ? -static_cast<int64_t>(sum) : sum, head_.pre_shift);
        return rounded(t * (mantissa < 0 ? -mantissa : mantissa), kLogitShift);
    }

    // Returns a rough logit in the unit of the exact ones.
    int64_t aligned(int64_t rough) const { return head_.coarser >= 0 ? rough * (int64_t{1} << head_.coarser) : rounded(rough, -head_.coarser); }

  private:
    static constexpr int64_t kLogitShift = 11;

    static int32_t dot(const int8_t* codes, const int8_t* row, size_t width) {
        int32_t sum = 0;
        size_t at = 0;
#ifdef __aarch64__
        int32x4_t sums[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
        for (; at + 32 <= width; at += 32)
            for (size_t half = 0; half < 2; ++half) {
                const int8x16_t a = vld1q_s8(codes + at + 16 * half), b = vld1q_s8(row + at + 16 * half);
                // Two products of codes, which are at least -127, and weights fit 16 bits.
                sums[half] = vpadalq_s16(sums[half], vmlal_high_s8(vmull_s8(vget_low_s8(a), vget_low_s8(b)), a, b));
            }
        sum = vaddvq_s32(vaddq_s32(sums[0], sums[1]));
#endif
        for (; at < width; ++at) sum += static_cast<int32_t>(codes[at]) * row[at];
        return sum;
    }

    static int64_t rounded(int64_t value, int64_t shift) { return (value + (int64_t{1} << shift >> 1)) >> shift; }

    const HeadRows& head_;
    std::vector<int8_t> codes_;
};

}  // namespace edgedec
