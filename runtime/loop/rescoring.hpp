// The second step of a rough head: its likeliest tokens are scored again with the rows of the int8 head. The definition is
// Python's: edgedec/reference/integer_profile/rescoring.py.
#pragma once

#include <algorithm>
#include <cstdint>
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
        int64_t most = 1;
        for (size_t at = 0; at < values.size(); ++at) {
            std::memcpy(&values[at], norm + static_cast<int64_t>(at) * step, sizeof(int32_t));
            most = std::max<int64_t>(most, std::abs(static_cast<int64_t>(values[at])));
        }
        int64_t bits = 0;
        while (most >> bits) ++bits;
        const int64_t mantissa = bits <= 16 ? most << (16 - bits) : most >> (bits - 16), reciprocal = (int64_t{127} << 25) / mantissa;
        for (size_t at = 0; at < values.size(); ++at) codes_[at] = static_cast<int8_t>(rounded(values[at] * reciprocal, bits + 9));
    }

    // Returns the logit of the int8 head.
    int64_t logit(int32_t id) const {
        const int8_t* row = head_.codes + id * head_.width;
        int32_t sum = 0;
        for (size_t at = 0; at < codes_.size(); ++at) sum += static_cast<int32_t>(codes_[at]) * row[at];
        const int64_t mantissa = head_.mantissa[id];
        const int64_t t = rounded(mantissa < 0 ? -static_cast<int64_t>(sum) : sum, head_.pre_shift);
        return rounded(t * (mantissa < 0 ? -mantissa : mantissa), kLogitShift);
    }

    // Returns a rough logit in the unit of the exact ones.
    int64_t aligned(int64_t rough) const { return head_.coarser >= 0 ? rough * (int64_t{1} << head_.coarser) : rounded(rough, -head_.coarser); }

  private:
    static constexpr int64_t kLogitShift = 11;

    static int64_t rounded(int64_t value, int64_t shift) { return (value + (int64_t{1} << shift >> 1)) >> shift; }

    const HeadRows& head_;
    std::vector<int8_t> codes_;
};

}  // namespace edgedec
