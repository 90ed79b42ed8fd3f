// The loops of recurrent.hpp. They have no sums across lanes, so that vectors of any width give the same bits.
#include "recurrent.hpp"

#include <cstring>
#include <initializer_list>

// GCC compiles a loop for several instruction sets and chooses one when the library is loaded.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define EDGEDEC_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EDGEDEC_CLONES
#endif

namespace edgedec {

const char* RecurrentState::problem(int64_t slot_floats, int64_t kept_rows) const {
    for (int64_t size : {heads, groups, outer, inner, offset, kept, slot_floats, kept_rows})
        if (size < 0 || size >= kMostFloats) return "a size of a recurrent state is out of range";
    if (inner < 1 || (heads && (groups < 1 || heads % groups || outer < 1)))
        return "the heads of a recurrent state must be a multiple of its groups";
    const double state = static_cast<double>(heads ? heads : 1) * static_cast<double>(outer) * static_cast<double>(inner);
    if (state > static_cast<double>(kMostFloats) || offset + floats() > slot_floats) return "a recurrent state is outside its slot";
    if (static_cast<double>(kept_rows) * static_cast<double>(kept_width()) > static_cast<double>(kMostFloats) ||
        kept + kept_rows * kept_width() > slot_floats)
        return "the kept rows of a recurrent state are outside its slot";
    return nullptr;
}

EDGEDEC_CLONES void advance_state(const float* from, float factor, const float* left, const float* right, int64_t outer,
                                  int64_t inner, float* to) {
    for (int64_t o = 0; o < outer; ++o) {
        const float scale = left[o];
        const float* const row = from + o * inner;
        float* const out = to + o * inner;
#pragma GCC ivdep
        for (int64_t i = 0; i < inner; ++i) out[i] = factor * row[i] + scale * right[i];
    }
}

EDGEDEC_CLONES void read_state(const float* state, float factor, const float* weights, int64_t outer, int64_t inner,
                               float* out) {
    std::memset(out, 0, static_cast<size_t>(inner) * sizeof(float));
    for (int64_t o = 0; o < outer; ++o) {
        const float weight = weights[o];
        const float* const row = state + o * inner;
#pragma GCC ivdep
        for (int64_t i = 0; i < inner; ++i) out[i] += weight * (factor * row[i]);
    }
}

EDGEDEC_CLONES void add_products(const float* weights, const float* x, int64_t count, float* out) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) out[i] += weights[i] * x[i];
}

void commit_state(const RecurrentState& state, float* slot, const int32_t* nodes, int64_t count) {
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
            const float* const row = kept + nodes[i] * width;
            float* const own = committed + head * state.head_floats();
            advance_state(own, row[head], row + state.left(head), row + state.right(head), state.outer, state.inner, own);
        }
}

}  // namespace edgedec
