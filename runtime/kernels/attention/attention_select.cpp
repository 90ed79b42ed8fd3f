// Labels of keys, the choice of keys by them, and attention over the chosen ones.
#include "attention/attention_select.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "attention/append_tile.hpp"
#include "attention/elements.hpp"
#include "attention/value_store.hpp"
#include "products/half.hpp"

namespace edgedec {

const char* Selection::problem(const KvLayout& layout) const {
    if (keys == 0) return layout.label_bytes ? "a cache with labels needs a selection" : nullptr;
    if (keys < 1 || share < 0 || share > 65536 || sinks < 0 || recent < 1) return "the numbers of a selection are out of range";
    if (keys <= sinks + recent) return "a selection needs more keys than sinks and recent ones";
    if (bits != 8 && bits != 4) return "codes of labels must have 8 or 4 bits";
    if (channels < 1 || channels > layout.head_dim) return "a label must have 1 to head_dim channels";
    if (label_bytes() != layout.label_bytes) return "the labels are not those of the cache";
    for (int64_t i = 0; i < layout.kv_heads * channels; ++i) {
        if (channel[i] < 0 || channel[i] >= layout.head_dim) return "a channel of a label is outside the head";
        if (!(steps[i] > 0.0f && steps[i] < 1e30f)) return "the steps of labels must be positive";
    }
    if (kept < 0 || kept > keys - sinks - recent) return "kept keys must be 0 to those that are chosen";
    return nullptr;
}

namespace {

// Reads `count` stored numbers of the cache from `bytes` on, whose scale is `scale` if they are codes.
void read_numbers(const uint8_t* bytes, int32_t bits, int64_t count, float scale, float* out) {
    if (bits == 32) std::memcpy(out, bytes, static_cast<size_t>(count) * sizeof(float));
    else if (bits == 16)
        for (int64_t i = 0; i < count; ++i) out[i] = from_half(reinterpret_cast<const uint16_t*>(bytes)[i]);
    else if (bits == 8)
        for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(reinterpret_cast<const int8_t*>(bytes)[i]) * scale;
    else
        for (int64_t i = 0; i < count; ++i) out[i] = NibblePlace{bytes, i}.code() * scale;
}

// Reads the key of a slot, whose position is needed if the key is rebuilt from its numbers and rotated:
//   element = 0;  for each number, in order:  element += number * direction
void read_key(const Path& path, const AttentionRows& rows, int64_t head, int64_t slot, int64_t position, float* key) {
    const KvLayout& at = rows.layout;
    const float scale = at.scaled() ? reinterpret_cast<const float*>(rows.cache + at.key_scales(head))[slot] : 1.0f;
    const uint8_t* const bytes = rows.cache + at.keys(head) + slot * at.key_row_bytes();
    if (!at.rank) return read_numbers(bytes, at.bits, at.head_dim, scale, key);
    float numbers[kMostHeadDim], plain[kMostHeadDim];
    read_numbers(bytes, at.bits, at.rank, scale, numbers);
    path.combine(numbers, at.rank, rows.basis.directions + head * at.rank * at.head_dim, at.head_dim, plain);
    rotate(plain, at.head_dim, rows.rotary, position, key);
}

// Returns the position of a slot of a sequence. That of a committed one is its number.
int64_t position_of(const AttentionRows& rows, const Segment& segment, int64_t slot) {
    return slot < segment.past ? slot : rows.positions[segment.first + slot - segment.past];
}

// Returns the layout of the cache of `count` chosen keys; keys that are rebuilt are floats.
KvLayout chosen_layout(const KvLayout& at, int64_t count) { return {1, at.head_dim, count, at.rank ? 32 : at.bits}; }

// The buffers of a thread, kept from pass to pass to avoid allocations.
struct Buffers {
    std::vector<float> query, scores, scratch;
    std::vector<int64_t> fresh, chosen;  // slots of the sequence
    std::vector<uint32_t> ranks, sorted;
    std::vector<uint8_t> importance;  // importance of the key of each slot of the sequence
    std::vector<uint8_t> cache;
    std::vector<int32_t> blocks;
    std::vector<int64_t> places;   // slots of the cache, of the chosen keys
    std::vector<uint8_t> records;  // values of the chosen keys with their scales, if they are in a file

    // Takes the memory of the longest sequence at once, because vectors that grow take up to three times theirs.
    void reserve(const AttentionRows& rows) {
        const auto most = static_cast<size_t>(rows.context + kKeyBlock);
        const int64_t count = std::min(rows.context, rows.select.count(rows.context));
        fresh.reserve(most), scores.reserve(most), ranks.reserve(most), sorted.reserve(most);
        chosen.reserve(static_cast<size_t>(count)), importance.reserve(rows.select.kept ? most : 0);
        cache.reserve(static_cast<size_t>(chosen_layout(rows.layout, count).bytes()));
        if (!rows.filed.store) return;
        places.reserve(static_cast<size_t>(count));
        records.reserve(static_cast<size_t>(count * rows.layout.value_record()));
    }
};

// Lists the slots of the pass that a token sees, in order. It sees all committed ones.
void list_new(const AttentionRows& rows, const Segment& segment, int64_t token, std::vector<int64_t>& seen) {
    seen.clear();
    const uint64_t* bits = rows.visible + token * rows.words;
    for (int64_t j = 0; j < segment.tokens; ++j)
        if (bits[j / 64] >> (j % 64) & 1) seen.push_back(segment.past + j);
}

// Returns a number that orders scores: larger ones have larger ranks, and NaN has the least.
EDGEDEC_INLINE uint32_t rank_of(float score) {
    if (!(score == score)) return 0;
    const float value = score + 0.0f;  // -0 and 0 are equal
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Returns the `wanted`th largest rank. Only the ranks that share their highest bits with it are sorted, a small part of them.
uint32_t least_of_largest(const std::vector<uint32_t>& ranks, int64_t wanted, std::vector<uint32_t>& sorted) {
    constexpr int kShift = 20;  // 12 bits are left: sign, exponent, and 3 bits of the mantissa
    uint32_t counts[1 << (32 - kShift)] = {};
    for (uint32_t rank : ranks) ++counts[rank >> kShift];
    uint32_t part = (1 << (32 - kShift)) - 1;
    while (wanted > counts[part]) wanted -= counts[part--];
    sorted.clear();
    for (uint32_t rank : ranks)
        if (rank >> kShift == part) sorted.push_back(rank);
    std::nth_element(sorted.begin(), sorted.begin() + (wanted - 1), sorted.end(), std::greater<uint32_t>());
    return sorted[static_cast<size_t>(wanted - 1)];
}

// Copies the importance of the keys of all slots of a sequence.
void list_importance(const AttentionRows& rows, int64_t head, const Segment& segment, std::vector<uint8_t>& importance) {
    importance.resize(static_cast<size_t>(segment.table() * kKeyBlock));
    for (int64_t block = 0; block < segment.table(); ++block) {
        const int64_t slot = segment.blocks[block] * kKeyBlock;
        std::memcpy(importance.data() + block * kKeyBlock,
                    label_at(rows.layout, rows.cache, head, slot, rows.select.code_bytes()), kKeyBlock);
    }
}

// Gives the `kept` keys of the largest importance among [first, last) the largest rank; of equal ones the earliest. `code`
// returns the importance of a key.
template <class Code>
void keep(int64_t first, int64_t last, int64_t kept, const Code& code, uint32_t* ranks) {
    int64_t counts[256] = {};
    for (int64_t i = first; i < last; ++i) ++counts[code(i)];
    int least = 255;
    while (least > 0 && kept > counts[least]) kept -= counts[least--];
    for (int64_t i = first; i < last; ++i)
        if (code(i) > least || (code(i) == least && kept-- > 0)) ranks[i - first] = ~uint32_t{0};
}

// Chooses from the slots that a query sees, `past` committed ones and `fresh`, those that it attends to, in order.
void choose(const Selection& select, int64_t past, Buffers& b) {
    const auto visible = past + static_cast<int64_t>(b.fresh.size()), count = select.count(visible);
    const int64_t* const fresh = b.fresh.data();
    const auto slot = [past, fresh](int64_t i) { return i < past ? i : fresh[i - past]; };
    b.chosen.resize(static_cast<size_t>(visible < count ? visible : count));
    int64_t* out = b.chosen.data();
    if (visible <= count) {
        for (int64_t i = 0; i < visible; ++i) *out++ = slot(i);
        return;
    }
    const int64_t first = select.sinks, last = visible - select.recent, wanted = count - select.sinks - select.recent;
    b.ranks.resize(static_cast<size_t>(last - first));
    uint32_t* const ranks = b.ranks.data();
    const float* const scores = b.scores.data();
    const int64_t middle = std::min(last, std::max(first, past));
    for (int64_t i = first; i < middle; ++i) ranks[i - first] = rank_of(scores[i]);
    for (int64_t i = middle; i < last; ++i) ranks[i - first] = rank_of(scores[slot(i)]);
    if (select.kept) {
        const uint8_t* const importance = b.importance.data();
        keep(first, last, select.kept, [&](int64_t i) { return importance[slot(i)]; }, ranks);
    }
    const uint32_t least = least_of_largest(b.ranks, wanted, b.sorted);
    int64_t ties = wanted;  // places that are left for keys of the least rank
    for (uint32_t rank : b.ranks) ties -= rank > least;
    for (int64_t i = 0; i < first; ++i) *out++ = slot(i);
    int64_t* const end = out + wanted;
    for (int64_t i = first; out < end; ++i) {  // without branches, which a processor could not predict
        const uint32_t rank = ranks[i - first];
        const bool tie = rank == least && ties > 0;
        *out = slot(i);
        out += rank > least || tie;
        ties -= tie;
    }
    for (int64_t i = last; i < visible; ++i) *out++ = slot(i);
}

// Copies elements T of chosen keys from rows to blocks of 16 columns.
template <class T>
void gather_keys(const AttentionRows& rows, int64_t head, const Segment& segment, const std::vector<int64_t>& chosen, uint8_t* to) {
    const int64_t size = rows.layout.head_dim;
    const T* const keys = reinterpret_cast<const T*>(rows.cache + rows.layout.keys(head));
    T* out = reinterpret_cast<T*>(to);
    for (size_t i = 0; i < chosen.size(); i += kKeyBlock, out += kKeyBlock * size) {
        const T* from[kKeyBlock];
        for (size_t j = 0; j < kKeyBlock; ++j)  // the last block repeats its last key, whose score nothing reads
            from[j] = keys + segment.slot(chosen[std::min(i + j, chosen.size() - 1)]) * size;
        for (int64_t d = 0; d < size; ++d)
            for (int64_t j = 0; j < kKeyBlock; ++j) out[d * kKeyBlock + j] = from[j][d];
    }
}

void gather_nibbles(const AttentionRows& rows, int64_t head, const Segment& segment, const std::vector<int64_t>& chosen, uint8_t* to) {
    const int64_t size = rows.layout.head_dim, row = rows.layout.row();
    const uint8_t* const keys = rows.cache + rows.layout.keys(head);
    for (size_t i = 0; i < chosen.size(); ++i) {
        const auto slot = static_cast<int64_t>(i), from = segment.slot(chosen[i]) * row;
        uint8_t* block = to + slot / kKeyBlock * kKeyBlock * row / 2;
        for (int64_t d = 0; d < size; ++d) {
            const int64_t at = from + d;
            const uint8_t code = static_cast<uint8_t>(keys[nibble_byte(at)] >> nibble_shift(at) & 15);
            put_nibble(block, d * kKeyBlock + slot % kKeyBlock, code);
        }
    }
}

// Rebuilds the chosen keys, as blocks of 16 columns.
void gather_rebuilt(const Path& path, const AttentionRows& rows, int64_t head, const Segment& segment, const std::vector<int64_t>& chosen, float* out) {
    const int64_t size = rows.layout.head_dim;
    float key[kMostHeadDim];
    for (size_t i = 0; i < chosen.size(); ++i) {
        read_key(path, rows, head, segment.slot(chosen[i]), position_of(rows, segment, chosen[i]), key);
        float* const column = out + static_cast<int64_t>(i / kKeyBlock * kKeyBlock) * size + i % kKeyBlock;
        for (int64_t d = 0; d < size; ++d) column[d * kKeyBlock] = key[d];
    }
    // The last block repeats its last key, whose score nothing reads.
    const int64_t count = static_cast<int64_t>(chosen.size()), tail = count % kKeyBlock;
    float* const block = out + count / kKeyBlock * kKeyBlock * size;
    for (int64_t d = 0; tail && d < size; ++d)
        for (int64_t j = tail; j < kKeyBlock; ++j) block[d * kKeyBlock + j] = block[d * kKeyBlock + tail - 1];
}

// Copies the values of the chosen keys, and their scales.
void gather_values(const AttentionRows& rows, int64_t head, const Segment& segment, const KvLayout& small, Buffers& b,
                   KeyCounts& counts) {
    const KvLayout& at = rows.layout;
    const int64_t row = at.row_bytes(), step = rows.filed.store ? at.value_record() : row;
    if (rows.filed.store) {
        b.places.resize(b.chosen.size()), b.records.resize(b.chosen.size() * static_cast<size_t>(step));
        for (size_t i = 0; i < b.chosen.size(); ++i) b.places[i] = segment.slot(b.chosen[i]);
        const FetchCounts took = rows.filed.store->read(rows.filed.part, head, b.places.data(),
                                                        static_cast<int64_t>(b.places.size()), b.records.data());
        counts.kept += took.kept, counts.fetched += took.fetched, counts.fetched_bytes += took.bytes;
    }
    uint8_t* const values = b.cache.data() + small.values(0);
    float* const scales = reinterpret_cast<float*>(b.cache.data() + small.value_scales(0));
    for (size_t i = 0; i < b.chosen.size(); ++i) {
        const int64_t number = static_cast<int64_t>(i), slot = segment.slot(b.chosen[i]);
        const uint8_t* const from = rows.filed.store ? b.records.data() + number * step : rows.cache + at.values(head) + slot * step;
        float scale = 1.0f;
        if (at.scaled() && rows.filed.store) std::memcpy(&scale, from + row, sizeof scale);
        else if (at.scaled()) scale = reinterpret_cast<const float*>(rows.cache + at.value_scales(head))[slot];
        if (at.rank) {
            read_numbers(from, at.bits, at.head_dim, scale, reinterpret_cast<float*>(values) + number * at.head_dim);
            continue;
        }
        std::memcpy(values + number * row, from, static_cast<size_t>(row));
        if (at.scaled()) scales[i] = scale;
    }
}

// Copies the chosen keys and values to the cache of a sequence that has nothing else.
void gather(const Path& path, const AttentionRows& rows, int64_t head, const Segment& segment, const KvLayout& small, Buffers& b,
            KeyCounts& counts) {
    const KvLayout& at = rows.layout;
    b.cache.resize(static_cast<size_t>(small.bytes()));
    uint8_t* const cache = b.cache.data();
    if (at.rank) gather_rebuilt(path, rows, head, segment, b.chosen, reinterpret_cast<float*>(cache));
    else if (at.bits == 32) gather_keys<uint32_t>(rows, head, segment, b.chosen, cache);
    else if (at.bits == 16) gather_keys<uint16_t>(rows, head, segment, b.chosen, cache);
    else if (at.bits == 8) gather_keys<uint8_t>(rows, head, segment, b.chosen, cache);
    else gather_nibbles(rows, head, segment, b.chosen, cache);
    gather_values(rows, head, segment, small, b, counts);
    for (size_t i = 0; small.scaled() && i < b.chosen.size(); ++i)
        std::memcpy(cache + small.key_scales(0) + i * 4, rows.cache + at.key_scales(head) + segment.slot(b.chosen[i]) * 4, 4);
}

// Computes one query row of a head over the chosen keys, as a pass of one row whose own key is the last of them.
void attend_chosen(const Path& path, const AttentionRows& rows, int64_t head, int64_t token, int64_t place, const Segment& segment,
                   Buffers& b, KeyCounts& counts) {
    const auto count = static_cast<int64_t>(b.chosen.size());
    const KvLayout small = chosen_layout(rows.layout, count);
    gather(path, rows, head, segment, small, b, counts);
    while (static_cast<int64_t>(b.blocks.size()) < small.blocks()) b.blocks.push_back(static_cast<int32_t>(b.blocks.size()));
    const Segment all{0, 1, count - 1, b.blocks.data(), 0};
    const uint64_t itself = 1;
    AttentionRows one = rows;
    one.layout = small, one.cache = b.cache.data(), one.segments = &all, one.segment_count = one.tokens = one.group = 1;
    one.queries = rows.queries + place, one.out = rows.out + place, one.positions = rows.positions + token;
    one.visible = &itself, one.words = 1, one.select = {};
    AttentionBlock block{&one, 0, 0, 1, 0, small.slots(), nullptr};
    b.scratch.resize(std::max(b.scratch.size(), static_cast<size_t>(block.scratch_floats())));
    block.scratch = b.scratch.data();
    path.attend(block);
}

// Counts the keys of a query that was alone in its pass, and those among them that the query before it read, too.
void compare(ChosenKeys& last, const Segment& segment, int64_t position, const std::vector<int64_t>& chosen, KeyCounts& counts) {
    const bool follows = last.position == position - 1 && last.block == segment.blocks[0];
    size_t at = 0;
    for (size_t i = 0; follows && i < chosen.size(); ++i) {
        while (at < last.slots.size() && last.slots[at] < chosen[i]) ++at;
        counts.hits += at < last.slots.size() && last.slots[at] == chosen[i];
    }
    counts.again += follows ? static_cast<int64_t>(chosen.size()) : 0;
    last.position = position, last.block = segment.blocks[0], last.slots = chosen;
}

// Returns a number rounded half to even, and limited to `most` below and above; NaN is 0.
int code_of(float value, float most) {
    const float code = __builtin_rintf(value);
    const float inside = code > most ? most : code < -most ? -most : code;
    return inside == inside ? static_cast<int>(inside) : 0;
}

// The rows of a head in the order of a pass, before they go to their places. `keys` and `values` are [tokens][size].
struct StagedRows {
    std::vector<float> numbers;
    std::vector<uint8_t> cache;
    std::vector<int32_t> blocks;

    // Stores rows [tokens][size] as the path stores keys and values, in the order of the pass.
    KvLayout store(const Path& path, const AttentionRows& rows, const float* keys, const float* values, int64_t size, bool rotated) {
        const KvLayout layout{1, size, rows.tokens, rows.layout.bits, 4};  // with labels, keys are stored by rows
        while (static_cast<int64_t>(blocks.size()) < layout.blocks()) blocks.push_back(static_cast<int32_t>(blocks.size()));
        cache.assign(static_cast<size_t>(layout.bytes()), 0);  // so that what fills up rows of codes of 4 bits is always the same
        const Segment all{0, rows.tokens, 0, blocks.data(), 0};
        AttentionRows own = rows;
        own.layout = layout, own.cache = cache.data(), own.segments = &all, own.segment_count = 1;
        own.keys = keys, own.values = values;
        if (!rotated) own.rotary = {};
        path.append(own, 0);
        return layout;
    }
};

// Copies the columns of a head, [tokens][size], from rows of all heads.
void copy_head(const AttentionRows& rows, const float* from, int64_t head, float* to) {
    const int64_t size = rows.layout.head_dim, width = rows.layout.kv_heads * size;
    for (int64_t token = 0; token < rows.tokens; ++token)
        std::memcpy(to + token * size, from + token * width + head * size, static_cast<size_t>(size) * sizeof(float));
}

// Computes the numbers of keys [tokens][head_dim]: products with the directions, as sums in the order of the dimensions.
void project(const Path& path, const AttentionRows& rows, int64_t head, const float* keys, float* numbers) {
    const int64_t size = rows.layout.head_dim, rank = rows.layout.rank;
    for (int64_t token = 0; token < rows.tokens; ++token)
        path.combine(keys + token * size, size, rows.basis.columns + head * size * rank, rank, numbers + token * rank);
}

// Calls body(token, slot of the cache) for the new rows of all segments.
template <class Body>
void each_new_row(const AttentionRows& rows, const Body& body) {
    for (const Segment *segment = rows.segments, *last = segment + rows.segment_count; segment < last; ++segment)
        for (int64_t row = 0; row < segment->tokens; ++row) body(segment->first + row, segment->slot(segment->past + row));
}

// Writes records of values, [tokens] in the order of the pass, to the file. Rows whose slots follow one another go together.
void file_values(const AttentionRows& rows, int64_t head, const std::vector<uint8_t>& records) {
    const int64_t bytes = rows.layout.value_record();
    int64_t first = 0, count = 0, start = 0;
    const auto flush = [&] {
        if (count) rows.filed.store->write(rows.filed.part, head, start, count, records.data() + first * bytes);
    };
    each_new_row(rows, [&](int64_t token, int64_t slot) {
        if (!count || slot != start + count) flush(), first = token, count = 0, start = slot;
        ++count;
    });
    flush();
}

}  // namespace

std::vector<float> columns_of(const KvLayout& layout, const float* directions) {
    std::vector<float> columns(static_cast<size_t>(layout.kv_heads * layout.rank * layout.head_dim));
    for (int64_t head = 0; head < layout.kv_heads; ++head)
        for (int64_t r = 0; r < layout.rank; ++r)
            for (int64_t d = 0; d < layout.head_dim; ++d)
                columns[static_cast<size_t>((head * layout.head_dim + d) * layout.rank + r)] =
                    directions[(head * layout.rank + r) * layout.head_dim + d];
    return columns;
}

void append_elsewhere(const Path& path, const AttentionRows& rows, int64_t head) {
    static thread_local StagedRows staged;
    static thread_local std::vector<uint8_t> records;
    const KvLayout& at = rows.layout;
    const int64_t size = at.head_dim, row = at.row_bytes(), record = at.value_record(), key_row = at.key_row_bytes();
    staged.numbers.resize(static_cast<size_t>(rows.tokens * (2 * size + at.rank)));
    float *const keys = staged.numbers.data(), *const values = keys + rows.tokens * size, *const numbers = values + rows.tokens * size;
    copy_head(rows, rows.keys, head, keys);
    copy_head(rows, rows.values, head, values);
    float* const key_scales = reinterpret_cast<float*>(rows.cache + at.key_scales(head));
    const auto put_keys = [&](const KvLayout& layout) {
        const float* const scales = reinterpret_cast<const float*>(staged.cache.data() + layout.key_scales(0));
        each_new_row(rows, [&](int64_t token, int64_t slot) {
            std::memcpy(rows.cache + at.keys(head) + slot * key_row, staged.cache.data() + token * key_row, static_cast<size_t>(key_row));
            if (at.scaled()) key_scales[slot] = scales[token];
        });
    };
    if (at.rank) {
        project(path, rows, head, keys, numbers);
        put_keys(staged.store(path, rows, numbers, numbers, at.rank, false));
    }
    const KvLayout layout = staged.store(path, rows, keys, values, size, true);
    if (!at.rank) put_keys(layout);
    records.resize(static_cast<size_t>(rows.tokens * record));
    for (int64_t token = 0; token < rows.tokens; ++token) {
        uint8_t* const to = records.data() + token * record;
        std::memcpy(to, staged.cache.data() + layout.values(0) + token * row, static_cast<size_t>(row));
        if (at.scaled()) std::memcpy(to + row, staged.cache.data() + layout.value_scales(0) + token * 4, 4);
    }
    if (rows.filed.store) return file_values(rows, head, records);
    each_new_row(rows, [&](int64_t token, int64_t slot) {
        const uint8_t* const from = records.data() + token * record;
        std::memcpy(rows.cache + at.values(head) + slot * row, from, static_cast<size_t>(row));
        if (at.scaled()) std::memcpy(rows.cache + at.value_scales(head) + slot * 4, from + row, 4);
    });
}

void append_labels(const Path& path, const AttentionRows& rows, int64_t head) {
    const Selection& select = rows.select;
    const int64_t* const channel = select.channel + head * select.channels;
    const float* const steps = select.steps + head * select.channels;
    const float most = select.bits == 8 ? 127.0f : kMostNibble;
    float key[kMostHeadDim];
    each_new_row(rows, [&](int64_t token, int64_t slot) {
        read_key(path, rows, head, slot, rows.positions[token], key);
        for (int64_t c = 0; c < select.channels; ++c) {
            const int whole = code_of(key[channel[c]] / steps[c], most);
            if (select.bits == 8) {
                *label_at(rows.layout, rows.cache, head, slot, c) = static_cast<uint8_t>(whole);
            } else {
                uint8_t& both = *label_at(rows.layout, rows.cache, head, slot, c / 2);
                both = static_cast<uint8_t>((both & (c % 2 ? 0x0F : 0xF0)) | (whole + kNibbleBias) << (c % 2 * 4));
            }
        }
        if (!select.kept) return;
        const float* weights = select.importance + head * (1 + rows.layout.head_dim);
        float sum = weights[0];
        for (int64_t d = 0; d < rows.layout.head_dim; ++d) sum = sum + weights[1 + d] * (key[d] * key[d]);
        *label_at(rows.layout, rows.cache, head, slot, select.code_bytes()) = static_cast<uint8_t>(code_of(sum, 127.0f) + 128);
    });
}

void attend_selected(const Path& path, const AttentionRows& rows, int64_t head, int64_t first, int64_t count, int64_t segment) {
    static thread_local Buffers b;
    const KvLayout& at = rows.layout;
    const Selection& select = rows.select;
    const int64_t size = at.head_dim, width = at.kv_heads * rows.group * size;
    const Segment* own = rows.segments + segment;
    KeyCounts counts{};
    b.reserve(rows);
    b.query.resize(static_cast<size_t>(size + select.channels));
    float *const query = b.query.data(), *const weights = query + size;
    for (int64_t row = first; row < first + count; ++row) {
        const int64_t token = row / rows.group, place = token * width + (head * rows.group + row % rows.group) * size;
        while (token >= own->first + own->tokens) ++own;
        list_new(rows, *own, token, b.fresh);
        const auto visible = own->past + static_cast<int64_t>(b.fresh.size());
        if (visible > select.count(visible)) {
            rotate(rows.queries + place, size, rows.rotary, rows.positions[token], query);
            for (int64_t c = 0; c < select.channels; ++c)
                weights[c] = query[select.channel[head * select.channels + c]] * select.steps[head * select.channels + c];
            b.scores.resize(std::max(b.scores.size(), static_cast<size_t>(own->table() * kKeyBlock)));
            path.score({rows.cache + at.labels(head), at.label_bytes, own->blocks, own->table(), weights, select.channels,
                        select.bits, b.scores.data()});
            counts.bytes += visible * at.label_bytes;
            if (select.kept) list_importance(rows, head, *own, b.importance);
        }
        choose(select, own->past, b);
        attend_chosen(path, rows, head, token, place, *own, b, counts);
        const auto chosen = static_cast<int64_t>(b.chosen.size());
        counts.seen += visible, counts.read += chosen;
        counts.bytes += chosen * (at.key_row_bytes() + (at.scaled() ? 4 : 0) + at.value_record());
        if (select.last && rows.tokens == 1)
            compare((*select.last)[static_cast<size_t>(head * rows.group + row)], *own, rows.positions[token], b.chosen, counts);
    }
    if (!select.counts) return;
    const auto add = [](int64_t& total, int64_t count) { __atomic_fetch_add(&total, count, __ATOMIC_RELAXED); };
    add(select.counts->seen, counts.seen), add(select.counts->read, counts.read), add(select.counts->bytes, counts.bytes);
    add(select.counts->again, counts.again), add(select.counts->hits, counts.hits);
    add(select.counts->kept, counts.kept), add(select.counts->fetched, counts.fetched);
    add(select.counts->fetched_bytes, counts.fetched_bytes);
}

}  // namespace edgedec
