// The loops of recurrent.hpp. They have no sums across lanes, so that vectors of any width give the same bits.
#include "rows/recurrent.hpp"

#include <cstring>
#include <initializer_list>

// GCC compiles a loop for several instruction sets and chooses one when the library is loaded.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define EDGEDEC_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EDGEDEC_CLONES
#endif

namespace edgedec {
namespace {

// Returns exp(x) of x <= 0 with an error of some units in the last place; below -87 that of -87, which is less than 1e-37, and of
// NaN or minus infinity NaN. There is no comparison of floats, because compilers make branches of those.
// Source: the reduction and the polynomial of expf in the Cephes library.
inline float exp_of(float x) {
    constexpr uint32_t kLeast = 0xC2AE0000u;  // bits of -87; those of smaller numbers are larger
    constexpr float kRounding = 12582912.0f;  // 1.5 * 2^23: the sum's last bit is worth 1
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = bits > kLeast ? kLeast : bits;
    float z;
    std::memcpy(&z, &bits, sizeof z);
    const float shifted = z * 1.44269504f + kRounding, power = shifted - kRounding;
    const float r = (z - power * 0.693359375f) + power * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = (y * (r * r) + r) + 1.0f;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4B400000u + 127u) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return y * scale + (x - x);
}

EDGEDEC_CLONES void advance_rows(const float* from, const float* factors, int64_t step, const float* left, const float* right,
                                 int64_t outer, int64_t inner, float* to) {
    for (int64_t o = 0; o < outer; ++o) {
        const float factor = factors[o * step], scale = left[o];
        const float* const row = from + o * inner;
        float* const out = to + o * inner;
#pragma GCC ivdep
        for (int64_t i = 0; i < inner; ++i) out[i] = factor * row[i] + scale * right[i];
    }
}

EDGEDEC_CLONES void advance_elements(const float* from, const float* rates, const float* steps, const float* left,
                                     const float* right, int64_t outer, int64_t inner, float* to) {
    for (int64_t o = 0; o < outer; ++o) {
        const float scale = left[o];
        const float *const row = from + o * inner, *const rate = rates + o * inner;
        float* const out = to + o * inner;
#pragma GCC ivdep
        for (int64_t i = 0; i < inner; ++i) out[i] = exp_of(-(rate[i] * steps[i])) * row[i] + scale * right[i];
    }
}

}  // namespace

const char* RecurrentState::problem(int64_t slot_floats, int64_t kept_rows, int64_t table_floats) const {
    for (int64_t size : {heads, groups, outer, inner, offset, kept, table, slot_floats, kept_rows, table_floats})
        if (size < 0 || size >= kMostFloats) return "a size of a recurrent state is out of range";
    if (inner < 1 || (heads && (groups < 1 || heads % groups || outer < 1)))
        return "the heads of a recurrent state must be a multiple of its groups";
    if (decay < 0 || decay > static_cast<int64_t>(Decay::element)) return "the decay of a recurrent state must be 0, 1 or 2";
    const double state = static_cast<double>(heads ? heads : 1) * static_cast<double>(outer) * static_cast<double>(inner);
    if (state > static_cast<double>(kMostFloats) || offset + floats() > slot_floats) return "a recurrent state is outside its slot";
    if (static_cast<double>(kept_rows) * static_cast<double>(kept_width()) > static_cast<double>(kMostFloats) ||
        kept + kept_rows * kept_width() > slot_floats)
        return "the kept rows of a recurrent state are outside its slot";
    if (heads && kind() == Decay::element && table + floats() > table_floats)
        return "the rates of a recurrent state are outside the tables";
    return nullptr;
}

void advance_state(const RecurrentState& state, int64_t head, const float* tables, const float* kept, const float* from,
                   float* to) {
    const float *const factors = kept + state.factor(head), *const left = kept + state.left(head);
    const float* const right = kept + state.right(head);
    if (state.kind() == Decay::element)
        advance_elements(from, tables + state.table + head * state.head_floats(), factors, left, right, state.outer, state.inner, to);
    else
        advance_rows(from, factors, state.kind() == Decay::row, left, right, state.outer, state.inner, to);
}

EDGEDEC_CLONES void read_state(const float* state, const float* factors, int64_t step, const float* weights, int64_t outer,
                               int64_t inner, float* out) {
    std::memset(out, 0, static_cast<size_t>(inner) * sizeof(float));
    for (int64_t o = 0; o < outer; ++o) {
        const float factor = factors[o * step], weight = weights[o];
        const float* const row = state + o * inner;
#pragma GCC ivdep
        for (int64_t i = 0; i < inner; ++i) out[i] += weight * (factor * row[i]);
    }
}

EDGEDEC_CLONES void add_products(const float* weights, const float* x, int64_t count, float* out) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) out[i] += weights[i] * x[i];
}

void commit_state(const RecurrentState& state, const float* tables, float* slot, const int32_t* nodes, int64_t count) {
    float* const committed = slot + state.offset;
    const float* const kept = slot + state.kept;
    const int64_t width = state.kept_width();
    if (!state.heads) {
        const auto bytes = static_cast<size_t>(state.inner) * sizeof(float);
        const int64_t left = count < state.outer ? state.outer - count : 0;  // rows of the state that stay in it
        std::memmove(committed, committed + (state.outer - left) * state.inner, static_cast<size_t>(left) * bytes);
        for (int64_t o = left; o < state.outer; ++o)
            std::memcpy(committed + o * state.inner, kept + nodes[count - state.outer + o] * width, bytes);
        return;
    }
    for (int64_t head = 0; head < state.heads; ++head)
        for (int64_t i = 0; i < count; ++i) {
            float* const own = committed + head * state.head_floats();
            advance_state(state, head, tables, kept + nodes[i] * width, own, own);
        }
}

}  // namespace edgedec
