// The layout of the cache, and the division of an attention pass into tasks.
#include "attention.hpp"

#include <cstring>
#include <vector>

namespace edgedec {

const char* KvLayout::problem() const {
    if (kv_heads < 1 || kv_heads > 4096) return "key/value heads must be 1 to 4096";
    if (head_dim < 2 || head_dim > kMostHeadDim || head_dim % 2) return "head_dim must be even, 2 to 512";
    if (positions < 1 || positions > int64_t{1} << 24) return "positions must be 1 to 2^24";
    if (bits != 32 && bits != 16 && bits != 8) return "KV bits must be 32, 16 or 8";
    return nullptr;
}

void move_rows(const KvLayout& layout, uint8_t* cache, int64_t start, const int32_t* nodes, int64_t count) {
    const int64_t bytes = layout.bits / 8, row = layout.head_dim * bytes;
    const auto copy = [](uint8_t* to, const uint8_t* from, int64_t size) {
        std::memcpy(to, from, static_cast<size_t>(size));
    };
    const auto key = [&](int64_t slot) { return (slot / kKeyBlock * kKeyBlock * layout.head_dim + slot % kKeyBlock) * bytes; };
    for (int64_t i = 0; i < count; ++i) {
        const int64_t from = start + nodes[i], to = start + i;
        if (from == to) continue;
        for (int64_t head = 0; head < layout.kv_heads; ++head) {
            uint8_t *keys = cache + layout.keys(head), *values = cache + layout.values(head);
            for (int64_t d = 0; d < layout.head_dim; ++d)
                copy(keys + key(to) + d * kKeyBlock * bytes, keys + key(from) + d * kKeyBlock * bytes, bytes);
            copy(values + to * row, values + from * row, row);
            if (layout.bits != 8) continue;
            for (uint8_t* scales : {cache + layout.key_scales(head), cache + layout.value_scales(head)})
                copy(scales + to * 4, scales + from * 4, 4);
        }
    }
}

const char* attention_problem(const AttentionRows& rows, const AttentionBlock& block) {
    if (const char* problem = rows.layout.problem()) return problem;
    if (block.past < 0 || block.past + block.tokens > rows.layout.positions) return "the pass does not fit the cache";
    if (block.group < 1) return "every key/value head needs a query head";
    if (block.window < 0 || block.sinks < 0) return "window and sinks must not be negative";
    if (!(block.cap == 0 || (block.cap > 1e-30f && block.cap < 1e30f))) return "cap must be 0 or positive";
    if (block.words * 64 < block.tokens) return "the mask has too few bits";
    for (int64_t i = 0; i < block.tokens; ++i) {
        if (rows.positions[i] < 0 || rows.positions[i] >= rows.layout.positions) return "a position is outside the cache";
        if (!(block.visible[i * block.words + i / 64] >> (i % 64) & 1)) return "a token does not see itself";
    }
    return nullptr;
}

AttentionPass::AttentionPass(const Path& path, const AttentionRows& rows, const AttentionBlock& block)
    : path_(path), block_(block), blocks_((block.tokens * block.group + kRows - 1) / kRows) {
    path.append(rows);
}

void AttentionPass::run(int64_t task) const {
    static thread_local std::vector<float> scratch;  // kept from pass to pass to avoid allocations
    AttentionBlock block = block_;
    block.head = task / blocks_;
    block.first = task % blocks_ * kRows;
    const int64_t left = block.tokens * block.group - block.first;
    block.count = left < kRows ? left : kRows;
    scratch.resize(static_cast<size_t>(block.scratch_floats()));
    block.scratch = scratch.data();
    path_.attend(block);
}

}  // namespace edgedec
