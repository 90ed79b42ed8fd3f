#include "target.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "products/half.hpp"

namespace edgedec {
namespace {

template <class Number, class Real, class Convert>
void convert(const uint8_t* from, Real* to, int64_t width, const Convert& value_of) {
    for (int64_t at = 0; at < width; ++at) {
        Number number;
        std::memcpy(&number, from + static_cast<size_t>(at) * sizeof(Number), sizeof(Number));
        to[at] = static_cast<Real>(value_of(number));
    }
}

float from_bfloat16(uint16_t number) {
    const uint32_t bits = static_cast<uint32_t>(number) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

// Reads bytes of the bundle's weights.
template <class Number>
void read_row(const TargetArguments& target, int64_t offset, std::vector<Number>& row) {
    const size_t bytes = row.size() * sizeof(Number);
    if (target.stored_rows) {
        std::memcpy(row.data(), target.stored_rows + offset, bytes);
        return;
    }
    if (pread(static_cast<int>(target.file), row.data(), bytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(bytes))
        throw std::runtime_error("a row of the embedding cannot be read from the bundle");
}

// Writes ternary rows: the sum over the planes of trit * scale in float32, or with tied planes their digits' integer * scale.
template <class Real>
void embed_ternary(const TargetArguments& target, const Tokens& tokens, Real* to) {
    const int64_t groups = target.group ? (target.width + target.group - 1) / target.group : 0;
    std::vector<uint8_t> row(static_cast<size_t>(target.row_bytes));
    std::vector<float> scales(static_cast<size_t>(groups));
    std::vector<uint16_t> halves(static_cast<size_t>(target.half_scales ? groups : 0));
    std::vector<float> digits(static_cast<size_t>(target.width)), sums(digits.size());
    for (const int32_t token : tokens) {
        std::fill(digits.begin(), digits.end(), 0.0f);
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int64_t plane = 0; plane < target.planes; ++plane) {
            read_row(target, target.offset + (plane * target.vocab + token) * target.row_bytes, row);
            const bool scaled = !target.tied || plane == target.planes - 1;
            if (groups && scaled) {
                const int64_t before = (target.tied ? 0 : plane * target.vocab) + token;
                if (target.half_scales) {
                    read_row(target, target.scales_offset + before * groups * 2, halves);
                    std::transform(halves.begin(), halves.end(), scales.begin(), from_half);
                } else {
                    read_row(target, target.scales_offset + before * groups * 4, scales);
                }
            }
            for (int64_t at = 0; at < target.width; ++at) {
                const int code = row[static_cast<size_t>(at / 4)] >> 2 * (at % 4) & 3;
                float& digit = digits[static_cast<size_t>(at)];
                digit = (target.tied ? 3.0f * digit : 0.0f) + static_cast<float>(code - 2);
                if (scaled) sums[static_cast<size_t>(at)] += digit * (groups ? scales[static_cast<size_t>(at / target.group)] : target.scales[0]);
            }
        }
        to = std::copy(sums.begin(), sums.end(), to);
    }
}

// Writes the embedding of each token to `to`. Codes are multiplied with their scale in the type of `to`.
template <class Real>
void embed(const TargetArguments& target, const Tokens& tokens, Real* to) {
    constexpr size_t kBytes[] = {1, 4, 2, 2};
    const auto stored = static_cast<Stored>(target.stored);
    if (stored == Stored::ternary) {
        embed_ternary(target, tokens, to);
        return;
    }
    const size_t bytes = static_cast<size_t>(target.width) * kBytes[target.stored];
    std::vector<uint8_t> row(bytes);
    for (const int32_t token : tokens) {
        read_row(target, target.offset + token * static_cast<int64_t>(bytes), row);
        if (stored == Stored::int8) {
            const auto scale = static_cast<Real>(target.scales[token]);
            convert<int8_t>(row.data(), to, target.width, [scale](int8_t code) { return static_cast<Real>(code) * scale; });
        } else if (stored == Stored::float32) {
            convert<float>(row.data(), to, target.width, [](float number) { return number; });
        } else if (stored == Stored::bfloat16) {
            convert<uint16_t>(row.data(), to, target.width, from_bfloat16);
        } else {
            convert<uint16_t>(row.data(), to, target.width, from_half);
        }
        to += target.width;
    }
}

}  // namespace

void TargetPass::add(const SequenceRows& sequence) {
    const auto rows = static_cast<int64_t>(sequence.tokens.size());
    if (target_.wide_embed) {
        embed(target_, sequence.tokens, target_.wide_embed + rows_ * target_.width);
    } else {
        embed(target_, sequence.tokens, target_.embed + rows_ * target_.width);
    }
    int64_t* positions = target_.row_positions + rows_;
    uint64_t* visible = target_.visible + rows_ * words_;
    for (int64_t row = 0; row < rows; ++row) {
        const int32_t parent = sequence.parents[static_cast<size_t>(row)];
        positions[row] = parent < 0 ? sequence.past : positions[parent] + 1;
        visible[row * words_] = uint64_t{1} << row | (parent < 0 ? 0 : visible[parent * words_]);
    }
    target_.sequences[2 * sequences_] = rows;
    target_.sequences[2 * sequences_ + 1] = sequence.past;
    if (target_.commit) target_.slots[sequences_] = sequence.slot;
    const int64_t blocks = (sequence.past + rows + target_.block_rows - 1) / target_.block_rows;
    for (int64_t kind = 0; kind < target_.kinds; ++kind)
        std::copy_n(sequence.blocks + kind * target_.block_stride, blocks, target_.table + kind * target_.table_stride + blocks_);
    rows_ += rows;
    blocks_ += blocks;
    ++sequences_;
}

bool TargetPass::submit(const Tokens* results) const {
    const int64_t count = results ? static_cast<int64_t>(results->size()) : rows_;
    for (int64_t at = 0; at < count; ++at) target_.result_rows[at] = results ? (*results)[static_cast<size_t>(at)] : at;
    return !target_.submit(target_.session, rows_, count);
}

bool commit_path(const TargetArguments& target, const int32_t* blocks, int64_t held, int64_t slot, int64_t past, const Tokens& nodes) {
    const auto count = static_cast<int64_t>(nodes.size());
    if (!count) return true;
    if (nodes.back() != count - 1 && target.move(target.cache_numbers, target.cache_count, target.cache, blocks, target.block_stride,
                                                 held, past, nodes.data(), count))
        return false;
    return !target.commit || !target.commit(target.state_numbers, target.state_count, target.states, target.table_floats,
                                            target.states + target.table_floats + slot * target.slot_floats, target.slot_floats,
                                            target.slot_rows, nodes.data(), count);
}

}  // namespace edgedec
