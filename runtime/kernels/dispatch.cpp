// Selection of the code path: the fastest that this CPU supports, or the one that EDGEDEC_KERNEL names.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "products/amx.hpp"
#include "attention/attention.hpp"
#include "products/grid.hpp"
#include "products/half.hpp"
#include "products/int8.hpp"
#include "rows/rows.hpp"
#include "products/staging.hpp"
#include "products/ternary.hpp"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifndef EDGEDEC_I8MM
#define EDGEDEC_I8MM 1  // recipe.py defines it as 0 if the compiler does not know these instructions
#endif

namespace edgedec {
namespace {

// kPaths is ordered by speed, the fastest path first.
#define EDGEDEC_PATH(name, usable, order)                                                                              \
    {#name,          tile_##name,      quantize_##name, sum_##name,  attend_##name, append_##name,    score_##name,      \
     combine_##name, int8_rows_##name, grid_##name,     norm_##name, gate_##name,   transform_##name, usable,    order, \
     false}
#define EDGEDEC_NO_PATH(name)                                                                                  \
    {#name,   nullptr, nullptr, nullptr, nullptr, nullptr,     nullptr, nullptr,                               \
     nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,     Order::rows, false}

bool always() { return true; }

#if defined(__x86_64__)
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512vnni() {
#ifdef EDGEDEC_EMULATE_AVX512
    return true;
#else
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vnni");
#endif
}
#if EDGEDEC_AMX
// Returns whether the processor has AMX with int8, and the system lets this process use it. Linux does so from 5.16 on, if no
// thread has an alternate signal stack that is too small for the tiles.
bool has_amx() {
    if (!has_avx512vnni()) return false;
#if defined(EDGEDEC_EMULATE_AVX512)
    return true;
#else
    constexpr unsigned kTiles = 1u << 24, kInt8 = 1u << 25, kSaved = 1u << 27;  // bits of edx, and OSXSAVE of ecx
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA. Source: Linux's x86/xstate
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kSaved)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTiles) || !(d & kInt8)) return false;
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#endif
}
#endif
constexpr Path kPaths[] = {
#if EDGEDEC_AMX
    {"amx", tile_amx, quantize_avx512vnni, sum_avx512vnni, attend_avx512vnni, append_avx512vnni, score_avx512vnni,
     combine_avx512vnni, int8_rows_amx,
     grid_avx512vnni, norm_avx512vnni, gate_avx512vnni, transform_avx512vnni, has_amx, Order::fours, true},
#else
    EDGEDEC_NO_PATH(amx),
#endif
    EDGEDEC_PATH(avx512vnni, has_avx512vnni, Order::fours),
    EDGEDEC_PATH(avx2, has_avx2, Order::fours),
    EDGEDEC_NO_PATH(neon_i8mm),
    EDGEDEC_NO_PATH(neon_dotprod),
    EDGEDEC_NO_PATH(neon),
    EDGEDEC_PATH(scalar, always, Order::rows),
};
#elif defined(__aarch64__)
bool has_dotprod() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & (1UL << 20);  // HWCAP_ASIMDDP
#elif defined(__APPLE__)
    return true;  // every Apple silicon has it
#else
    return false;
#endif
}
#if EDGEDEC_I8MM
// One token runs with dot products, so those are needed, too.
bool has_i8mm() {
#if defined(__linux__)
    constexpr unsigned long kHwcap2 = 26, kI8mm = 1UL << 13;  // AT_HWCAP2 and HWCAP2_I8MM. Source: Linux's arm64/elf_hwcaps
    return has_dotprod() && (getauxval(kHwcap2) & kI8mm);
#elif defined(__APPLE__)
    int answer = 0;
    size_t size = sizeof answer;
    return sysctlbyname("hw.optional.arm.FEAT_I8MM", &answer, &size, nullptr, 0) == 0 && answer;
#else
    return false;
#endif
}
#endif
constexpr Path kPaths[] = {
#if EDGEDEC_I8MM
    {"neon_i8mm", tile_neon_i8mm, quantize_neon_dotprod, sum_neon_dotprod, attend_neon_dotprod, append_neon_dotprod,
     score_neon_dotprod, combine_neon_dotprod, int8_rows_neon_i8mm, grid_neon_i8mm, norm_neon_dotprod, gate_neon_dotprod, transform_neon_dotprod, has_i8mm,
     Order::pairs, false},
#else
    EDGEDEC_NO_PATH(neon_i8mm),
#endif
    EDGEDEC_PATH(neon_dotprod, has_dotprod, Order::rows),
    EDGEDEC_PATH(neon, always, Order::rows),
    EDGEDEC_NO_PATH(amx),
    EDGEDEC_NO_PATH(avx512vnni),
    EDGEDEC_NO_PATH(avx2),
    EDGEDEC_PATH(scalar, always, Order::rows),
};
#else
constexpr Path kPaths[] = {
    EDGEDEC_NO_PATH(amx),          EDGEDEC_NO_PATH(avx512vnni), EDGEDEC_NO_PATH(avx2), EDGEDEC_NO_PATH(neon_i8mm),
    EDGEDEC_NO_PATH(neon_dotprod), EDGEDEC_NO_PATH(neon),       EDGEDEC_PATH(scalar, always, Order::rows),
};
#endif

struct Choice {
    const Path* path = nullptr;
    std::string message;
};

Choice choose() {
    Choice choice;
    const char* named = std::getenv("EDGEDEC_KERNEL");
    if (named && *named) {
        std::string usable;
        for (const Path& path : kPaths)
            if (path.tile && path.usable()) usable += (usable.empty() ? "" : ", ") + std::string(path.name);
        const Path* path = find_path(named);
        const std::string what = "EDGEDEC_KERNEL=" + std::string(named);
        if (!path)
            choice.message = what + " is no code path";
        else if (!path->tile)
            choice.message = what + " is not in a library for this kind of processor";
        else if (!path->usable())
            choice.message = what + " needs instructions that this processor lacks";
        else if (!self_test(*path))
            choice.message = what + " fails its numeric self-test";
        else
            choice.path = path;
        if (!choice.path) choice.message += "; usable here: " + usable + ", or unset it";
        return choice;
    }
    for (const Path& path : kPaths) {
        if (!path.tile || !path.usable()) continue;
        if (self_test(path)) {
            choice.path = &path;
            return choice;
        }
        choice.message += std::string(path.name) + " failed its numeric self-test; ";
    }
    return choice;
}

uint32_t next(uint32_t& state) { return (state = state * 1664525u + 1013904223u) >> 16; }

// Returns the product of a random ternary matrix and activations, made from `seed`, on `path`. The sizes are not multiples of
// any block size. Scales of groups are float16 for an odd `seed`.
std::vector<float> product(const Path& path, uint32_t seed, int64_t tokens, int32_t planes, int32_t group_size) {
    Ternary w{21, 611, planes, group_size, nullptr, nullptr, nullptr, group_size && seed % 2};
    std::vector<uint8_t> codes(static_cast<size_t>(w.bytes()));
    std::vector<float> scales(static_cast<size_t>(planes * w.outputs * w.groups())), bias(21);
    for (auto& byte : codes)
        for (int shift = 0; shift < 8; shift += 2) byte = static_cast<uint8_t>(byte | next(seed) % 3 << shift);
    std::vector<uint16_t> halves(scales.size());
    for (size_t i = 0; i < scales.size(); ++i) {
        scales[i] = static_cast<float>(next(seed)) / 65536.0f;
        halves[i] = to_half(scales[i]);
    }
    for (int64_t at = 0; group_size && at < w.tiles() * planes; ++at) {
        const int64_t first = at % planes * w.outputs * w.groups();
        pack_scales(w, w.half_scales ? static_cast<const void*>(halves.data() + first) : scales.data() + first, at / planes,
                    codes.data() + at * w.plane_bytes());
    }
    for (auto& value : bias) value = static_cast<float>(next(seed));
    w.codes = codes.data(), w.scale = scales.data(), w.bias = bias.data();
    Staging x;
    x.resize(tokens, w.inputs);
    for (int64_t t = 0; t < tokens; ++t) {
        std::memset(x.codes(t), 0, static_cast<size_t>(x.stride()));
        for (int64_t i = 0; i < w.inputs; ++i)  // the third token saturates
            x.codes(t)[i] = static_cast<int8_t>(t == 2 ? 127 : static_cast<int>(next(seed) % 255) - 127);
        *x.scale(t) = static_cast<float>(next(seed) + 1) / 4096.0f;
        x.sum(path, t, group_size);
    }
    x.arrange(path);
    std::vector<float> out(static_cast<size_t>(tokens * w.outputs));
    for (int64_t tile = 0; tile < w.tiles(); ++tile) path.tile(w, x.view(group_size), tile, out.data(), w.outputs);
    return out;
}

// Returns the product of a random int8 matrix and activations on `path`. Some activations and codes have the largest magnitude.
std::vector<float> int8_product(const Path& path, uint32_t seed, int64_t tokens, bool by_rows, int64_t inputs) {
    constexpr int64_t kOutputs = 203;
    std::vector<int8_t> codes(static_cast<size_t>(kOutputs * inputs));
    std::vector<float> scales(kOutputs), bias(kOutputs);
    for (auto& code : codes) code = static_cast<int8_t>(next(seed));
    for (auto& scale : scales) scale = static_cast<float>(next(seed)) / 65536.0f;
    for (auto& value : bias) value = static_cast<float>(next(seed));
    std::memset(codes.data(), -128, static_cast<size_t>(inputs));
    const Int8Matrix w{kOutputs, inputs, by_rows, codes.data(), scales.data(), bias.data()};
    Staging x;
    x.resize(tokens, inputs);
    for (int64_t t = 0; t < tokens; ++t) {
        std::memset(x.codes(t), 0, static_cast<size_t>(x.stride()));
        for (int64_t i = 0; i < inputs; ++i)
            x.codes(t)[i] = static_cast<int8_t>(t == 2 ? -127 : static_cast<int>(next(seed) % 255) - 127);
        *x.scale(t) = static_cast<float>(next(seed) + 1) / 4096.0f;
        x.sum(path, t, 0);
    }
    std::vector<float> out(static_cast<size_t>(tokens * kOutputs));
    path.int8_rows(w, x.view(0), 0, 70, out.data(), kOutputs);
    path.int8_rows(w, x.view(0), 70, kOutputs, out.data(), kOutputs);
    return out;
}

// Returns the product of a random matrix with evenly spaced levels and activations on `path`. Some activations and codes have
// the largest magnitude.
std::vector<float> grid_product(const Path& path, uint32_t seed, int64_t tokens, int32_t bits, int32_t form,
                                int32_t group_size) {
    Grid w{21, 301, bits, form, group_size, nullptr, nullptr};
    std::vector<uint8_t> data(static_cast<size_t>(w.bytes()));
    std::vector<float> bias(21);
    for (auto& byte : data) byte = static_cast<uint8_t>(next(seed));
    for (auto& value : bias) value = static_cast<float>(next(seed));
    const int64_t codes = w.blocks() * w.block_bytes();
    std::memset(data.data(), 0xff, static_cast<size_t>(w.block_bytes()));
    if (bits == 5) {  // codes are at most 26: 16 is added to codes up to 10 only
        for (uint8_t* block = data.data(); block < data.data() + data.size(); block += w.block_bytes())
            if (block + w.block_bytes() <= data.data() + data.size())
                for (int64_t i = 0; i < kLineBytes; ++i)
                    for (int four = 0; four < 8; ++four)
                        if ((block[four / 2 * kLineBytes + i] >> (four % 2 * 4) & 15) > 10)
                            block[4 * kLineBytes + i] = static_cast<uint8_t>(block[4 * kLineBytes + i] & ~(1 << four));
    }
    for (int64_t tile = 0; tile < w.tiles(); ++tile) {
        uint8_t* scales = data.data() + tile * w.tile_bytes() + codes;
        // With 0x3f or less in its last byte, a float of either size is positive and finite, and a step is at most 63.
        for (int64_t i = 0, size = form == kFloat ? 4 : 2; i < w.scale_bytes(); i += size) {
            const bool steps = form == kOffset && i % kSharedBytes >= 4 * kTileRows;
            for (int64_t j = steps ? 0 : size - 1; j < size; ++j)
                scales[i + j] = static_cast<uint8_t>(scales[i + j] & 0x3f);
        }
    }
    w.data = data.data(), w.bias = bias.data();
    Staging x;
    x.resize(tokens, w.inputs);
    for (int64_t t = 0; t < tokens; ++t) {
        std::memset(x.codes(t), 0, static_cast<size_t>(x.stride()));
        for (int64_t i = 0; i < w.inputs; ++i)
            x.codes(t)[i] = static_cast<int8_t>(t == 2 ? -127 : static_cast<int>(next(seed) % 255) - 127);
        *x.scale(t) = static_cast<float>(next(seed) + 1) / 4096.0f;
        x.sum(path, t, group_size);
    }
    x.arrange_for_grid(path);
    std::vector<float> out(static_cast<size_t>(tokens * w.outputs));
    for (int64_t tile = 0; tile < w.tiles(); ++tile) path.grid(w, x.view(group_size), tile, out.data(), w.outputs);
    return out;
}

// Returns the results of an attention pass of two sequences with a common block of 16 rows: one of `tokens` rows after 37
// others, and one of 3 rows after 16 others. The bytes of the cache follow. From 6 tokens on, queries choose some of their keys.
std::vector<float> attention(const Path& path, uint32_t seed, int64_t tokens, int32_t bits) {
    constexpr int64_t kDim = 20, kHeads = 6, kPast = 37, kSlots = 70, kContext = 64, kShort = 3;
    constexpr int64_t kChannels[] = {3, 11, 19, 0, 7, 8};
    constexpr float kSteps[] = {0.02f, 0.03f, 0.01f, 0.02f, 0.3f, 0.2f};
    const Selection select = tokens < 6 ? Selection{}
                                        : Selection{9, 0, 2, 4, 3, tokens % 2 ? 8 : 4, kChannels, kSteps, 0, nullptr, nullptr, nullptr};
    const KvLayout layout{2, kDim, kSlots, bits, select.label_bytes()};
    std::vector<uint8_t> cache(static_cast<size_t>(layout.bytes()));
    const auto random = [&seed](int64_t count) {
        std::vector<float> values(static_cast<size_t>(count));
        for (float& value : values) value = static_cast<float>(next(seed)) / 16384.0f - 2.0f;
        return values;
    };
    const auto tables = random(2 * kContext * kDim / 2);
    const Rotary rotary{1 + static_cast<int32_t>(tokens % 2), tables.data(), tables.data() + kContext * kDim / 2};
    const int32_t blocks[] = {3, 0, 4, 3, 1};  // three of the first sequence, and two of the second
    std::vector<float> out;
    for (int64_t past : {int64_t{0}, kPast}) {
        const std::vector<int64_t> sequences =
            past ? std::vector<int64_t>{tokens, past, kShort, kKeyBlock} : std::vector<int64_t>{kPast, 0};
        const int64_t count = past ? tokens + kShort : kPast;
        std::vector<int64_t> positions;
        std::vector<uint64_t> visible;
        for (size_t s = 0; s < sequences.size(); s += 2)
            for (int64_t i = 0; i < sequences[s]; ++i) {
                positions.push_back(sequences[s + 1] + (i ? (i + 1) / 2 : 0));  // two nodes per level
                visible.push_back((uint64_t{1} << i) | 1 | (i > 2 ? uint64_t{1} << (i - 2) : 0));
            }
        const auto queries = random(count * kHeads * kDim), keys = random(count * 2 * kDim), values = random(count * 2 * kDim);
        out.assign(queries.size(), 0.0f);
        std::vector<Segment> segments;
        if (read_segments(layout, sequences.data(), static_cast<int64_t>(sequences.size() / 2), blocks, 5, count, segments))
            return {};
        AttentionRows rows{};
        rows.layout = layout, rows.cache = cache.data();
        rows.segments = segments.data(), rows.segment_count = static_cast<int64_t>(segments.size());
        rows.tokens = count, rows.context = kContext, rows.group = kHeads / 2;
        rows.queries = queries.data(), rows.keys = keys.data(), rows.values = values.data(), rows.out = out.data();
        rows.positions = positions.data(), rows.visible = visible.data(), rows.words = 1;
        rows.window = tokens == 4 ? 9 : 0, rows.sinks = 3, rows.scale = 0.25f, rows.rotary = rotary;
        rows.cap = tokens % 4 == 1 ? 1.5f : 0.0f, rows.quantize = path.quantize, rows.select = select;
        if (attention_problem(rows)) return {};
        const AttentionPass pass(path, rows);
        for (int64_t task = 0; task < pass.tasks(); ++task) pass.run(task);
    }
    for (uint8_t byte : cache) out.push_back(byte);
    return out;
}

// Returns the norm of random rows of several widths, each of their gated activations, and transforms of blocks, on `path`.
std::vector<float> row_operations(const Path& path, uint32_t seed) {
    std::vector<float> out;
    for (int64_t width : {int64_t{1}, int64_t{16}, int64_t{83}}) {
        const auto size = static_cast<size_t>(width);
        std::vector<float> x(size), other(size), made(size);
        for (float& value : x) value = static_cast<float>(next(seed)) / 256.0f - 128.0f;
        for (float& value : other) value = static_cast<float>(next(seed)) / 16384.0f - 2.0f;
        path.norm(x.data(), other.data(), width, 1e-5f, made.data());
        out.insert(out.end(), made.begin(), made.end());
        for (int32_t activation = 0; activation < kActivations; ++activation) {
            path.gate(activation, x.data(), other.data(), width, made.data());
            out.insert(out.end(), made.begin(), made.end());
        }
    }
    for (int64_t block = 2; block <= 256; block *= 2) {
        const auto size = static_cast<size_t>(block);
        std::vector<float> x(size), signs(size), made(size);
        for (float& value : x) value = static_cast<float>(next(seed)) / 256.0f - 128.0f;
        for (float& value : signs) value = next(seed) % 2 ? 1.0f : -1.0f;
        for (bool inverse : {false, true}) {
            path.transform(x.data(), signs.data(), block, inverse, made.data());
            out.insert(out.end(), made.begin(), made.end());
        }
    }
    return out;
}

bool same(const std::vector<float>& right, const std::vector<float>& made) {
    return right.size() == made.size() && !right.empty() &&
           std::memcmp(right.data(), made.data(), right.size() * sizeof(float)) == 0;
}

}  // namespace

const Path* find_path(const char* name) {
    for (const Path& path : kPaths)
        if (std::strcmp(path.name, name) == 0) return &path;
    return nullptr;
}

const Path* chosen_path(const char** message) {
    static const Choice choice = choose();
    if (message) *message = choice.message.c_str();
    return choice.path;
}

bool self_test(const Path& path) {
    const Path& definition = *find_path("scalar");
    float x[83];
    uint32_t state = 1;
    for (float& value : x) value = static_cast<float>(next(state)) - 32768.0f;
    x[80] = 32512.0f * 2, x[81] = 256.0f, x[82] = 768.0f;  // scale 512, and two ties
    int8_t expected[96], found[96];
    float expected_scale, found_scale;
    definition.quantize(x, 83, expected, 96, &expected_scale);
    path.quantize(x, 83, found, 96, &found_scale);
    if (std::memcmp(expected, found, sizeof found) != 0 || expected_scale != found_scale) return false;
    if (!same(row_operations(definition, 1), row_operations(path, 1))) return false;
    for (int32_t tokens = 1; tokens <= 9; ++tokens) {  // each number of tokens has its own code
        const int32_t group_sizes[] = {0, 32, 64, 128};
        const int32_t group_size = group_sizes[tokens % 4], planes = 1 + tokens % 3;
        const uint32_t seed = static_cast<uint32_t>(tokens);
        if (!same(product(definition, seed, tokens, planes, group_size), product(path, seed, tokens, planes, group_size)))
            return false;
        for (bool by_rows : {false, true})
            if (!same(int8_product(definition, seed, tokens, by_rows, 411), int8_product(path, seed, tokens, by_rows, 411)))
                return false;
        const int32_t grid_bits = 4 + tokens % 2, form = tokens / 2 % 3, grid_group = 32 << tokens % 3;
        if (!same(grid_product(definition, seed, tokens, grid_bits, form, grid_group),
                  grid_product(path, seed, tokens, grid_bits, form, grid_group)))
            return false;
        const int32_t bits = 4 << tokens % 4;
        if (!same(attention(definition, seed, tokens, bits), attention(path, seed, tokens, bits))) return false;
    }
    for (int32_t tokens : {16, 21, 35}) {  // one and two tiles of tokens, and a part of another
        const uint32_t seed = static_cast<uint32_t>(tokens);
        for (int32_t group_size : {0, 32})
            if (!same(product(definition, seed, tokens, 1, group_size), product(path, seed, tokens, 1, group_size)))
                return false;
        if (!same(int8_product(definition, seed, tokens, true, 192), int8_product(path, seed, tokens, true, 192)))
            return false;
    }
    return true;
}

}  // namespace edgedec
