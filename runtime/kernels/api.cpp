// The C functions for Python (ctypes): selection of a code path, packing of weights, and single products, which tests compare
// with NumPy. Functions that can fail return 0, or -1 with the reason in edgedec_error().
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "attention/attention.hpp"
#include "attention/attention_select.hpp"
#include "products/grid.hpp"
#include "products/int8.hpp"
#include "rows/recurrent.hpp"
#include "rows/rows.hpp"
#include "products/staging.hpp"
#include "products/ternary.hpp"
#include "attention/value_store.hpp"

#if defined(_WIN32)
#define EDGEDEC_API extern "C" __declspec(dllexport)
#else
#define EDGEDEC_API extern "C" __attribute__((visibility("default")))
#endif

namespace {

thread_local std::string last_error;

int fail(const std::string& message) {
    last_error = message;
    return -1;
}

// Returns the path of that name, or that of this process if `name` is null; null, with the error set, if it cannot run here.
const edgedec::Path* runnable(const char* name) {
    const char* message = "";
    const edgedec::Path* path = name ? edgedec::find_path(name) : edgedec::chosen_path(&message);
    if (path && path->tile && path->usable()) return path;
    if (path) message = " cannot run on this machine";
    else if (name) message = " is no code path";
    fail((name ? name : std::string()) + message);
    return nullptr;
}

// Numbers of a state: kv_heads, head_dim, positions, bits, its first byte, its kind, label_bytes, rank, and the number of the store
// of its values, 0 if there is none, and their part of it.
constexpr int64_t kStateNumbers = 10;

edgedec::KvLayout layout_of(const int64_t* numbers) {
    return {numbers[0], numbers[1], numbers[2], static_cast<int32_t>(numbers[3]), numbers[6], numbers[7], numbers[8] != 0};
}

// The values of a state, and the store, which they keep open.
struct StateValues {
    std::shared_ptr<edgedec::ValueStore> store;
    edgedec::FiledValues filed;

    explicit StateValues(const int64_t* numbers)
        : store(numbers[8] ? edgedec::value_store(numbers[8]) : nullptr), filed{store.get(), static_cast<size_t>(numbers[9])} {}
    // Returns 0, or -1 with the error set if a reading or writing has failed.
    int report() const {
        const std::string why = store ? store->take_failure() : std::string();
        return why.empty() ? 0 : fail(why);
    }
};

}  // namespace

// Version of the layouts, signatures and operators. Increase it with every change of a layout, of a signature below, or of the
// operators that models use.
EDGEDEC_API int32_t edgedec_abi() { return 19; }

EDGEDEC_API const char* edgedec_error() { return last_error.c_str(); }

// Returns the path of this process, or null with the reason in edgedec_error(). edgedec_error() is also not empty if a faster
// path was skipped because it failed its self-test.
EDGEDEC_API const char* edgedec_path() {
    const char* message = nullptr;
    const edgedec::Path* path = edgedec::chosen_path(&message);
    last_error = message;
    return path ? path->name : nullptr;
}

// Returns whether `path` can run here and passes its self-test.
EDGEDEC_API int32_t edgedec_path_usable(const char* path) {
    const edgedec::Path* found = edgedec::find_path(path);
    return found && found->tile && found->usable() && edgedec::self_test(*found);
}

// Returns the bytes of a matrix in the kernels' layout; -1 if the sizes are invalid.
EDGEDEC_API int64_t edgedec_ternary_bytes(int64_t outputs, int64_t inputs, int32_t planes, int32_t group_size,
                                          int32_t half_scales) {
    const edgedec::Ternary w{outputs, inputs, planes, group_size, nullptr, nullptr, nullptr, half_scales != 0};
    return w.problem() ? fail(w.problem()) : w.bytes();
}

// Converts tiles [first, last) of stored codes [planes][outputs][row_bytes] (trit + 2) and scales [planes][outputs][groups] to
// the kernels' layout at `out`, which points to tile `first`, so that a large matrix can be converted piece by piece. The
// scales are float16 if `half_scales` is not 0. They are not read if there are no groups.
EDGEDEC_API int32_t edgedec_ternary_pack(const uint8_t* codes, const void* scales, int64_t row_bytes, int64_t outputs,
                                         int64_t inputs, int32_t planes, int32_t group_size, int32_t half_scales,
                                         int64_t first, int64_t last, uint8_t* out) {
    const edgedec::Ternary w{outputs, inputs, planes, group_size, nullptr, nullptr, nullptr, half_scales != 0};
    if (w.problem()) return fail(w.problem());
    if (row_bytes < (inputs + 3) / 4) return fail("a stored row is shorter than its columns");
    if (first < 0 || last > w.tiles() || first > last) return fail("there are no such tiles");
    for (int64_t tile = first; tile < last; ++tile)
        for (int32_t plane = 0; plane < planes; ++plane, out += w.plane_bytes()) {
            const int64_t bad = edgedec::pack_codes(w, codes + plane * outputs * row_bytes, row_bytes, tile, out);
            if (bad >= 0)
                return fail("row " + std::to_string(bad) + " of plane " + std::to_string(plane) +
                            " holds a code that is no trit");
            if (!group_size) continue;
            const int64_t before = plane * outputs * w.groups() * (half_scales ? 2 : 4);  // bytes of other planes
            edgedec::pack_scales(w, static_cast<const uint8_t*>(scales) + before, tile, out);
        }
    return 0;
}

// Quantizes x float32 [tokens][inputs] to codes int8 [tokens][inputs] and scales [tokens]. `path` null: that of this process.
EDGEDEC_API int32_t edgedec_quantize(const char* path, const float* x, int64_t tokens, int64_t inputs, int8_t* codes,
                                     float* scales) {
    if (inputs < 1 || inputs > edgedec::kMostInputs) return fail("inputs must be 1 to 2^20");
    const edgedec::Path* use = runnable(path);
    if (!use) return -1;
    for (int64_t t = 0; t < tokens; ++t)
        use->quantize(x + t * inputs, inputs, codes + t * inputs, inputs, scales + t);
    return 0;
}

// Transforms each block of x float32 [count], a multiple of `block`. `path` null: that of this process.
EDGEDEC_API int32_t edgedec_hadamard(const char* path, const float* x, const float* signs, int64_t count, int64_t block,
                                     int32_t inverse, float* out) {
    if (block < 2 || block > edgedec::kMostBlock || (block & (block - 1))) return fail("the block must be a power of two");
    const edgedec::Path* use = runnable(path);
    if (!use) return -1;
    for (int64_t i = 0; i + block <= count; i += block) use->transform(x + i, signs, block, inverse != 0, out + i);
    return 0;
}

// Computes tiles [first, last) of out float32 [tokens][outputs]. x [tokens][inputs] is int8 (zero point 0) or uint8 (zero
// point 128). `path` null: that of this process. `bias` may be null, and `scale`, that of a whole tensor, if there are groups.
EDGEDEC_API int32_t edgedec_ternary_matmul(const char* path, int64_t outputs, int64_t inputs, int32_t planes,
                                           int32_t group_size, int32_t half_scales, const uint8_t* codes,
                                           const float* scale, const float* bias, const uint8_t* x, int32_t zero_point,
                                           int64_t tokens, const float* token_scales, int64_t first, int64_t last,
                                           float* out) {
    const edgedec::Ternary w{outputs, inputs, planes, group_size, codes, scale, bias, half_scales != 0};
    if (w.problem()) return fail(w.problem());
    if (zero_point != 0 && zero_point != 128) return fail("the zero point must be 0 (int8) or 128 (uint8)");
    if (tokens < 0 || tokens > (int64_t{1} << 20)) return fail("tokens must be 0 to 2^20");
    if (first < 0 || last > w.tiles() || first > last) return fail("there are no such tiles");
    const edgedec::Path* use = runnable(path);
    if (!use) return -1;
    try {
        edgedec::Staging& staging = edgedec::thread_staging();
        staging.resize(tokens, inputs);
        for (int64_t t = 0; t < tokens; ++t) {
            int8_t* to = staging.codes(t);
            std::memset(to, 0, static_cast<size_t>(staging.stride()));
            for (int64_t i = 0; i < inputs; ++i) to[i] = static_cast<int8_t>(x[t * inputs + i] ^ zero_point);
            *staging.scale(t) = token_scales[t];
            staging.sum(*use, t, group_size);
        }
        staging.arrange(*use);
        const edgedec::Staged view = staging.view(group_size);
        for (int64_t tile = first; tile < last; ++tile) use->tile(w, view, tile, out, outputs);
    } catch (const std::bad_alloc&) {
        return fail("not enough memory for the activations");
    }
    return 0;
}

// out float32 [tokens][outputs], its columns [first, last). codes int8 [outputs][inputs] by rows, else [inputs][outputs]; x
// [tokens][inputs] is -127..127. `path` null: that of this process. `bias` may be null.
EDGEDEC_API int32_t edgedec_int8_matmul(const char* path, int64_t outputs, int64_t inputs, int32_t by_rows,
                                        const int8_t* codes, const float* scales, const float* bias, const int8_t* x,
                                        int64_t tokens, const float* token_scales, int64_t first, int64_t last,
                                        float* out) {
    const edgedec::Int8Matrix w{outputs, inputs, by_rows != 0, codes, scales, bias};
    if (w.problem()) return fail(w.problem());
    if (tokens < 0 || tokens > (int64_t{1} << 20)) return fail("tokens must be 0 to 2^20");
    if (first < 0 || last > outputs || first > last) return fail("there are no such outputs");
    const edgedec::Path* use = runnable(path);
    if (!use) return -1;
    try {
        edgedec::Staging& staging = edgedec::thread_staging();
        staging.resize(tokens, inputs);
        for (int64_t t = 0; t < tokens; ++t) {
            int8_t* to = staging.codes(t);
            std::memset(to, 0, static_cast<size_t>(staging.stride()));
            std::memcpy(to, x + t * inputs, static_cast<size_t>(inputs));
            for (int64_t i = 0; i < inputs; ++i)
                if (to[i] == -128) return fail("activations must be -127 to 127");
            *staging.scale(t) = token_scales[t];
            staging.sum(*use, t, 0);
        }
        use->int8_rows(w, staging.view(0), first, last, out, outputs);
    } catch (const std::bad_alloc&) {
        return fail("not enough memory for the activations");
    }
    return 0;
}

// Returns the bytes of a matrix with evenly spaced levels in the layout of grid.hpp; -1 if the sizes are invalid.
EDGEDEC_API int64_t edgedec_grid_bytes(int64_t outputs, int64_t inputs, int32_t bits, int32_t form, int32_t group_size) {
    const edgedec::Grid w{outputs, inputs, bits, form, group_size, nullptr, nullptr};
    return w.problem() ? fail(w.problem()) : w.bytes();
}

// Computes tiles [first, last) of out float32 [tokens][outputs] with x int8 [tokens][inputs]. `path` null: that of this
// process. `bias` may be null.
EDGEDEC_API int32_t edgedec_grid_matmul(const char* path, int64_t outputs, int64_t inputs, int32_t bits, int32_t form,
                                        int32_t group_size, const uint8_t* data, const float* bias, const int8_t* x,
                                        int64_t tokens, const float* token_scales, int64_t first, int64_t last,
                                        float* out) {
    const edgedec::Grid w{outputs, inputs, bits, form, group_size, data, bias};
    if (w.problem()) return fail(w.problem());
    if (tokens < 0 || tokens > (int64_t{1} << 20)) return fail("tokens must be 0 to 2^20");
    if (first < 0 || last > w.tiles() || first > last) return fail("there are no such tiles");
    const edgedec::Path* use = runnable(path);
    if (!use) return -1;
    try {
        edgedec::Staging& staging = edgedec::thread_staging();
        staging.resize(tokens, inputs);
        for (int64_t t = 0; t < tokens; ++t) {
            std::memset(staging.codes(t), 0, static_cast<size_t>(staging.stride()));
            std::memcpy(staging.codes(t), x + t * inputs, static_cast<size_t>(inputs));
            *staging.scale(t) = token_scales[t];
            staging.sum(*use, t, group_size);
        }
        staging.arrange_for_grid(*use);
        const edgedec::Staged view = staging.view(group_size);
        for (int64_t tile = first; tile < last; ++tile) use->grid(w, view, tile, out, outputs);
    } catch (const std::bad_alloc&) {
        return fail("not enough memory for the activations");
    }
    return 0;
}

// Returns the bytes of one state's cache; -1 if the sizes are invalid.
EDGEDEC_API int64_t edgedec_kv_bytes(int64_t kv_heads, int64_t head_dim, int64_t positions, int32_t bits,
                                     int64_t label_bytes, int64_t rank, int32_t filed) {
    const edgedec::KvLayout layout{kv_heads, head_dim, positions, bits, label_bytes, rank, filed != 0};
    return layout.problem() ? fail(layout.problem()) : layout.bytes();
}

// Copies slot start + nodes[i] of a sequence to its slot start + i in the caches of all states. `nodes` must ascend. `states`
// holds the numbers of each of the `count` states (kStateNumbers), and `blocks`, at kind * stride, the sequence's table of
// `entries` blocks.
EDGEDEC_API int32_t edgedec_kv_move(const int64_t* states, int64_t count, uint8_t* cache, const int32_t* blocks,
                                    int64_t stride, int64_t entries, int64_t start, const int32_t* nodes,
                                    int64_t node_count) {
    const int64_t end = entries * edgedec::kKeyBlock;
    for (int64_t i = 0; i < node_count; ++i)
        if (nodes[i] < i || (i && nodes[i] <= nodes[i - 1]) || start < 0 || start > end || start + nodes[i] >= end)
            return fail("nodes must ascend and lie in the cache");
    for (int64_t s = 0; s < count; ++s) {
        const edgedec::KvLayout layout = layout_of(states + kStateNumbers * s);
        if (layout.problem()) return fail(layout.problem());
        const int32_t* table = blocks + states[kStateNumbers * s + 5] * stride;
        for (int64_t i = 0; i < entries; ++i)
            if (table[i] < 0 || table[i] >= layout.blocks()) return fail("a block is outside the cache");
        const StateValues values(states + kStateNumbers * s);
        if (const char* problem = values.filed.problem(layout)) return fail(problem);
        edgedec::move_rows(layout, cache + states[kStateNumbers * s + 4], values.filed, table, start, nodes, node_count);
        if (values.report()) return -1;
    }
    return 0;
}

// Copies block `from` to block `to` in the caches of all states of a kind, which are given as for edgedec_kv_move.
EDGEDEC_API int32_t edgedec_kv_copy(const int64_t* states, int64_t count, uint8_t* cache, int64_t kind, int64_t from,
                                    int64_t to) {
    for (int64_t s = 0; s < count; ++s) {
        if (states[kStateNumbers * s + 5] != kind) continue;
        const edgedec::KvLayout layout = layout_of(states + kStateNumbers * s);
        if (layout.problem()) return fail(layout.problem());
        if (from < 0 || from >= layout.blocks() || to < 0 || to >= layout.blocks())
            return fail("a block is outside the cache");
        const StateValues values(states + kStateNumbers * s);
        if (const char* problem = values.filed.problem(layout)) return fail(problem);
        if (from != to) edgedec::copy_block(layout, cache + states[kStateNumbers * s + 4], values.filed, from, to);
        if (values.report()) return -1;
    }
    return 0;
}

// Runs a whole pass as the operator TreeAttention does (operators/attention.cpp). `path` null: that of this process. `select` holds
// keys, share, sinks, recent, channels, bits and kept of a selection, the rank of stored keys, and the number of the store of the
// values, 0 if there is none, whose first part they are. `basis` [kv_heads][rank][head_dim] is read with a rank.
EDGEDEC_API int32_t edgedec_attention(const char* path, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t slots,
                                      int32_t bits, uint8_t* cache, const int64_t* sequences, int64_t count,
                                      const int32_t* blocks, int64_t entries, int64_t context, int64_t tokens,
                                      const float* queries, const float* keys, const float* values,
                                      const int64_t* positions, const uint64_t* visible, int64_t words, int64_t window,
                                      int64_t sinks, float scale, float cap, int32_t rotary, const float* cos,
                                      const float* sin, const int64_t* select, const int64_t* channel, const float* steps,
                                      const float* importance, const float* basis, float* out) {
    const edgedec::Path* use = runnable(path);
    if (!use) return -1;
    edgedec::AttentionRows rows{};
    rows.select = {select[0], select[1], select[2], select[3],  select[4], static_cast<int32_t>(select[5]),
                   channel,   steps,     select[6], importance, nullptr,   nullptr};
    rows.layout = {kv_heads, head_dim, slots, bits, rows.select.label_bytes(), select[7], select[8] != 0};
    if (rows.layout.problem()) return fail(rows.layout.problem());
    const int64_t numbers[kStateNumbers] = {0, 0, 0, 0, 0, 0, 0, 0, select[8], 0};
    const StateValues kept(numbers);
    rows.filed = kept.filed;
    if (heads < 1 || heads % kv_heads) return fail("heads must be a multiple of key/value heads");
    try {
        std::vector<edgedec::Segment> segments;
        if (const char* problem = edgedec::read_segments(rows.layout, sequences, count, blocks, entries, tokens, segments))
            return fail(problem);
        rows.cache = cache, rows.segments = segments.data(), rows.segment_count = static_cast<int64_t>(segments.size());
        rows.tokens = tokens, rows.context = context, rows.group = heads / kv_heads;
        rows.queries = queries, rows.keys = keys, rows.values = values, rows.out = out;
        rows.positions = positions, rows.visible = visible, rows.words = words;
        rows.window = window, rows.sinks = sinks, rows.scale = scale, rows.cap = cap;
        rows.rotary = {rotary, cos, sin}, rows.quantize = use->quantize;
        const std::vector<float> columns = edgedec::columns_of(rows.layout, basis);
        rows.basis = {basis, columns.data()};
        if (const char* problem = edgedec::attention_problem(rows)) return fail(problem);
        const edgedec::AttentionPass pass(*use, rows);
        for (int64_t task = 0; task < pass.tasks(); ++task) pass.run(task);
    } catch (const std::bad_alloc&) {
        return fail("not enough memory for the scores");
    }
    return kept.report();
}

// Replaces the recurrent states of a slot of `slot_floats` floats by those after the rows `nodes` of the last pass, which are a
// path from its root. `states` holds heads, groups, outer, inner, offset, kept, decay and table of each of the `count` states
// (recurrent.hpp), and `tables` the rates of `table_floats` elements.
EDGEDEC_API int32_t edgedec_recurrent_commit(const int64_t* states, int64_t count, const float* tables, int64_t table_floats,
                                             float* slot, int64_t slot_floats, int64_t rows, const int32_t* nodes,
                                             int64_t node_count) {
    for (int64_t i = 0; i < node_count; ++i)
        if (nodes[i] < 0 || nodes[i] >= rows || (i && nodes[i] <= nodes[i - 1])) return fail("nodes must ascend and be rows");
    for (int64_t s = 0; s < count; ++s) {
        const int64_t* const n = states + edgedec::kStateNumbers * s;
        const edgedec::RecurrentState state{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]};
        if (const char* problem = state.problem(slot_floats, rows, table_floats)) return fail(problem);
        edgedec::commit_state(state, tables, slot, nodes, node_count);
    }
    return 0;
}
