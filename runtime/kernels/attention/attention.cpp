// The layout of the cache, and the division of an attention pass into tasks.
#include "attention/attention.hpp"

#include <cstring>

#include "attention/attention_select.hpp"
#include "attention/value_store.hpp"

namespace edgedec {

const char* KvLayout::problem() const {
    if (kv_heads < 1 || kv_heads > 4096) return "key/value heads must be 1 to 4096";
    if (head_dim < 2 || head_dim > kMostHeadDim || head_dim % 2) return "head_dim must be even, 2 to 512";
    if (positions < 1 || positions > kMostPositions) return "positions must be 1 to 2^24";
    if (bits != 32 && bits != 16 && bits != 8 && bits != 4) return "KV bits must be 32, 16, 8 or 4";
    if (label_bytes < 0 || label_bytes > kMostHeadDim || label_bytes % 4) return "bytes of a label must be 0, 4, 8, ... 512";
    if (rank && (rank < 2 || rank > head_dim || rank % 2)) return "the rank of keys must be even, 2 to head_dim";
    if ((rank || filed) && !label_bytes) return "keys of a rank and values in a file need labels";
    return nullptr;
}

const char* FiledValues::problem(const KvLayout& layout) const {
    if (!store) return layout.filed ? "the values need a file" : nullptr;
    if (!layout.filed || part >= store->parts()) return "the values are not those of the file";
    const ValuePart& sizes = store->part(part);
    const bool fits = sizes.heads == layout.kv_heads && sizes.slots == layout.slots() && sizes.row_bytes == layout.value_record();
    return fits ? nullptr : "the values are not those of the file";
}

namespace {

void copy(uint8_t* to, const uint8_t* from, int64_t size) { std::memcpy(to, from, static_cast<size_t>(size)); }

// Copies the keys of a slot to another one. `from` and `to` are slots of the cache.
void copy_keys(const KvLayout& layout, uint8_t* keys, int64_t from, int64_t to) {
    const int64_t group = kKeyBlock * layout.bits / 8;  // bytes of a dimension of a block
    const auto column = [&](int64_t slot) { return keys + slot / kKeyBlock * group * layout.row(); };
    const uint8_t* source = column(from);
    uint8_t* target = column(to);
    if (layout.bits == 4) {
        const int64_t read = nibble_byte(from % kKeyBlock), out = nibble_shift(from % kKeyBlock);
        for (int64_t d = 0; d < layout.head_dim; ++d, source += group, target += group)
            put_nibble(target, to % kKeyBlock, source[read] >> out & 15);
        return;
    }
    const int64_t bytes = layout.bits / 8;
    for (int64_t d = 0; d < layout.head_dim; ++d, source += group, target += group)
        copy(target + to % kKeyBlock * bytes, source + from % kKeyBlock * bytes, bytes);
}

}  // namespace

void move_rows(const KvLayout& layout, uint8_t* cache, const FiledValues& filed, const int32_t* blocks, int64_t start,
               const int32_t* nodes, int64_t count) {
    const int64_t row = layout.row_bytes(), key = layout.key_row_bytes();
    const Segment sequence{0, 0, 0, blocks, 0};
    for (int64_t i = 0; i < count; ++i) {
        if (nodes[i] == i) continue;
        const int64_t from = sequence.slot(start + nodes[i]), to = sequence.slot(start + i);
        for (int64_t head = 0; head < layout.kv_heads; ++head) {
            uint8_t* values = cache + layout.values(head);
            if (layout.by_rows()) copy(cache + layout.keys(head) + to * key, cache + layout.keys(head) + from * key, key);
            else copy_keys(layout, cache + layout.keys(head), from, to);
            if (filed.store) filed.store->copy(filed.part, head, from, to);
            else copy(values + to * row, values + from * row, row);
            for (int64_t byte = 0; byte < layout.label_bytes; ++byte)
                *label_at(layout, cache, head, to, byte) = *label_at(layout, cache, head, from, byte);
            if (!layout.scaled()) continue;
            uint8_t *const key_scales = cache + layout.key_scales(head), *const value_scales = cache + layout.value_scales(head);
            copy(key_scales + to * 4, key_scales + from * 4, 4);
            if (!filed.store) copy(value_scales + to * 4, value_scales + from * 4, 4);
        }
    }
}

void copy_block(const KvLayout& layout, uint8_t* cache, const FiledValues& filed, int64_t from, int64_t to) {
    const int64_t part = kKeyBlock * layout.row_bytes(), key = kKeyBlock * layout.key_row_bytes(), scales = kKeyBlock * 4;
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
        uint8_t *const keys = cache + layout.keys(head), *const values = cache + layout.values(head);
        copy(keys + to * key, keys + from * key, key);
        if (!filed.store) copy(values + to * part, values + from * part, part);
        for (int64_t row = 0; filed.store && row < kKeyBlock; ++row)
            filed.store->copy(filed.part, head, from * kKeyBlock + row, to * kKeyBlock + row);
        uint8_t* const labels = cache + layout.labels(head);
        copy(labels + to * kKeyBlock * layout.label_bytes, labels + from * kKeyBlock * layout.label_bytes,
             kKeyBlock * layout.label_bytes);
        if (!layout.scaled()) continue;
        uint8_t *const key_scales = cache + layout.key_scales(head), *const value_scales = cache + layout.value_scales(head);
        copy(key_scales + to * scales, key_scales + from * scales, scales);
        if (!filed.store) copy(value_scales + to * scales, value_scales + from * scales, scales);
    }
}

const char* read_segments(const KvLayout& layout, const int64_t* numbers, int64_t count, const int32_t* blocks, int64_t size,
                          int64_t tokens, std::vector<Segment>& segments) {
    segments.clear();
    for (int64_t first = 0; first < tokens; numbers += 2, --count) {
        if (!count || numbers[0] < 1 || numbers[0] > tokens - first) return "the rows of the sequences are not those of the pass";
        Segment segment{first, numbers[0], numbers[1], blocks, 0};
        if (segment.past < 0 || segment.past > kMostPositions) return "the pass does not fit the cache";
        if (segment.table() > size) return "the tables of blocks are too short";
        for (int64_t i = 0; i < segment.table(); ++i)
            if (blocks[i] < 0 || blocks[i] >= layout.blocks()) return "a block is outside the cache";
        if (!segments.empty()) {
            const Segment& before = segments.back();
            const int64_t past = (segment.past < before.past ? segment.past : before.past) / kKeyBlock * kKeyBlock;
            while (segment.shared < past && blocks[segment.shared / kKeyBlock] == before.blocks[segment.shared / kKeyBlock])
                segment.shared += kKeyBlock;
        }
        first += segment.tokens;
        blocks += segment.table();
        size -= segment.table();
        segments.push_back(segment);
    }
    return nullptr;
}

const char* attention_problem(const AttentionRows& rows) {
    if (const char* problem = rows.layout.problem()) return problem;
    if (rows.group < 1) return "every key/value head needs a query head";
    if (rows.window < 0 || rows.sinks < 0) return "window and sinks must not be negative";
    if (const char* problem = rows.select.problem(rows.layout)) return problem;
    if (rows.select.keys && rows.window) return "keys are chosen only where there is no window";
    if (rows.layout.rank && !(rows.basis.directions && rows.basis.columns)) return "keys of a rank need a basis";
    if (const char* problem = rows.filed.problem(rows.layout)) return problem;
    if (!(rows.cap == 0 || (rows.cap > 1e-30f && rows.cap < 1e30f))) return "cap must be 0 or positive";
    for (int64_t s = 0; s < rows.segment_count; ++s) {
        const Segment& segment = rows.segments[s];
        if (segment.end() > rows.context) return "the pass does not fit the context";
        if (rows.words * 64 < segment.tokens) return "the mask has too few bits";
        for (int64_t i = 0; i < segment.tokens; ++i) {
            const int64_t token = segment.first + i;
            if (rows.positions[token] < 0 || rows.positions[token] >= rows.context) return "a position is outside the cache";
            if (!(rows.visible[token * rows.words + i / 64] >> (i % 64) & 1)) return "a token does not see itself";
        }
    }
    return nullptr;
}

// Rows of several segments are in one task if their segments share blocks, so that the task reads these blocks once.
AttentionPass::AttentionPass(const Path& path, const AttentionRows& rows) : path_(path), rows_(rows) {
    parts_.reserve(static_cast<size_t>((rows.tokens * rows.group + kRows - 1) / kRows + rows.segment_count));
    for (int64_t s = 0; s < rows.segment_count; ++s) {
        const Segment& segment = rows.segments[s];
        const int64_t stride = (segment.end() + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
        int64_t first = segment.first * rows.group, left = segment.tokens * rows.group;
        products_ += segment.tokens * segment.end();
        while (left) {
            const bool joins = !parts_.empty() && parts_.back().count < kRows &&
                               (first > segment.first * rows.group || (s && segment.shared));
            if (!joins) parts_.push_back({first, 0, s, 0});
            Part& part = parts_.back();
            const int64_t room = kRows - part.count, count = left < room ? left : room;
            part.count += count;
            part.stride = stride > part.stride ? stride : part.stride;
            first += count;
            left -= count;
        }
    }
    for (int64_t head = 0; !own_rows() && head < rows.layout.kv_heads; ++head) append(head);
}

void AttentionPass::append(int64_t head) const {
    if (rows_.layout.rank || rows_.filed.store) append_elsewhere(path_, rows_, head);
    else path_.append(rows_, head);
    if (rows_.select.keys) append_labels(path_, rows_, head);
}

void AttentionPass::run(int64_t task) const {
    static thread_local std::vector<float> scratch;  // kept from pass to pass to avoid allocations
    const auto parts = static_cast<int64_t>(parts_.size());
    const Part& part = parts_[static_cast<size_t>(task % parts)];
    if (own_rows()) append(task / parts);
    if (rows_.select.keys) return attend_selected(path_, rows_, task / parts, part.first, part.count, part.segment);
    AttentionBlock block{&rows_, task / parts, part.first, part.count, part.segment, part.stride, nullptr};
    if (const auto floats = static_cast<size_t>(block.scratch_floats()); scratch.size() < floats) scratch.resize(floats);
    block.scratch = scratch.data();
    path_.attend(block);
}

}  // namespace edgedec
