// Parts of wide values, faster than CXXRTL's own: those move the whole value for each part that is read, written or put
// beside others; here only the words that the part touches are. Included before a design, in all of its files.
#pragma once
#include <cxxrtl/cxxrtl.h>

#include <utility>

namespace edgedec::values {

using cxxrtl::value;
using Word = uint32_t;
constexpr size_t kWord = 32;
constexpr Word kOnes = ~Word{0};

template <size_t Bits>
constexpr size_t kWords = (Bits + kWord - 1) / kWord;

// Bits of word ``n`` that lie in [start, start + bits).
constexpr Word covered(size_t n, size_t start, size_t bits) {
    const size_t low = start > n * kWord ? start - n * kWord : 0;
    const size_t end = start + bits - n * kWord;
    return (kOnes << low) & (end >= kWord ? kOnes : kOnes >> (kWord - end));
}

template <size_t N, size_t Start, size_t Bits, size_t From>
CXXRTL_ALWAYS_INLINE Word word_of_part(const value<From>& whole) {
    constexpr size_t first = Start / kWord + N, shift = Start % kWord;
    Word word = whole.data[first] >> shift;
    if constexpr (shift != 0 && N * kWord + kWord - shift < Bits) word |= whole.data[first + 1] << (kWord - shift);
    if constexpr ((N + 1) * kWord > Bits) word &= covered(N, 0, Bits);
    return word;
}

template <size_t Start, size_t Bits, size_t From, size_t... N>
CXXRTL_ALWAYS_INLINE value<Bits> part(const value<From>& whole, std::index_sequence<N...>) {
    return value<Bits>{word_of_part<N, Start, Bits>(whole)...};
}

template <size_t Start, size_t Bits, size_t From>
CXXRTL_ALWAYS_INLINE value<Bits> part(const value<From>& whole) {
    return part<Start, Bits>(whole, std::make_index_sequence<kWords<Bits>>());
}

// Word Start / 32 + N of a value that has ``bits`` at Start and zeros elsewhere.
template <size_t N, size_t Start, size_t Bits>
CXXRTL_ALWAYS_INLINE Word shifted_word(const value<Bits>& bits) {
    constexpr size_t shift = Start % kWord;
    Word word = 0;
    if constexpr (N < kWords<Bits>) word = bits.data[N] << shift;
    if constexpr (N > 0 && shift != 0) word |= bits.data[N - 1] >> (kWord - shift);
    return word;
}

template <size_t N, size_t Start, size_t Bits, size_t To>
CXXRTL_ALWAYS_INLINE void replace_word(value<To>& whole, const value<Bits>& bits) {
    constexpr size_t at = Start / kWord + N;
    constexpr Word mask = covered(at, Start, Bits);
    const Word word = shifted_word<N, Start>(bits);
    whole.data[at] = mask == kOnes ? word : (whole.data[at] & ~mask) | word;
}

template <size_t Start, size_t Bits, size_t To, size_t... N>
CXXRTL_ALWAYS_INLINE void replace(value<To>& whole, const value<Bits>& bits, std::index_sequence<N...>) {
    (replace_word<N, Start>(whole, bits), ...);
}

template <size_t Start, size_t Bits>
constexpr size_t kTouched = (Start + Bits - 1) / kWord - Start / kWord + 1;

template <size_t Start, size_t Bits, size_t To>
CXXRTL_ALWAYS_INLINE void replace(value<To>& whole, const value<Bits>& bits) {
    replace<Start>(whole, bits, std::make_index_sequence<kTouched<Start, Bits>>());
}

template <size_t Start, size_t Bits, size_t To, size_t... N>
CXXRTL_ALWAYS_INLINE void put(value<To>& zeros, const value<Bits>& bits, std::index_sequence<N...>) {
    ((zeros.data[Start / kWord + N] |= shifted_word<N, Start>(bits)), ...);
}

// A concatenation's parts, each at its place of ``out``, which is zero there.
template <size_t Start, size_t To, class Expression>
CXXRTL_ALWAYS_INLINE void put(value<To>& out, const Expression& expression) {
    constexpr size_t bits = Expression::bits;
    put<Start>(out, static_cast<const value<bits>&>(expression), std::make_index_sequence<kTouched<Start, bits>>());
}

template <size_t Start, size_t To, class High, class Low>
CXXRTL_ALWAYS_INLINE void put(value<To>& out, const cxxrtl::concat_expr<High, Low>& expression) {
    put<Start>(out, expression.ls_expr);
    put<Start + Low::bits>(out, expression.ms_expr);
}

template <class Self, class Whole, size_t Stop, size_t Start>
struct Slice : cxxrtl::expr_base<Self> {
    static_assert(Stop >= Start && Stop < Whole::bits);
    static constexpr size_t bits = Stop - Start + 1;

    Whole& expr;

    Slice(Whole& whole) : expr(whole) {}
    Slice(const Slice&) = delete;

    CXXRTL_ALWAYS_INLINE operator value<bits>() const { return part<Start, bits>(expr); }
    CXXRTL_ALWAYS_INLINE value<bits> val() const { return part<Start, bits>(expr); }
    CXXRTL_ALWAYS_INLINE Self& operator=(const value<bits>& other) {
        replace<Start>(expr, other);
        return static_cast<Self&>(*this);
    }
};

template <class Self, class High, class Low>
struct Concat : cxxrtl::expr_base<Self> {
    static constexpr size_t bits = High::bits + Low::bits;

    High& ms_expr;
    Low& ls_expr;

    Concat(High& high, Low& low) : ms_expr(high), ls_expr(low) {}
    Concat(const Concat&) = delete;

    CXXRTL_ALWAYS_INLINE operator value<bits>() const { return val(); }
    CXXRTL_ALWAYS_INLINE value<bits> val() const {
        value<bits> out;
        put<0>(out, static_cast<const Self&>(*this));
        return out;
    }
    CXXRTL_ALWAYS_INLINE Self& operator=(const value<bits>& other) {
        ms_expr = part<Low::bits, High::bits>(other);
        ls_expr = part<0, Low::bits>(other);
        return static_cast<Self&>(*this);
    }
};

// A write of no bits changes nothing and need not be kept until the end of the cycle.
template <size_t Width>
CXXRTL_ALWAYS_INLINE void write(cxxrtl::memory<Width>& memory, size_t index, const value<Width>& bits,
                                const value<Width>& mask, int priority) {
    if (!mask.is_zero()) memory.update(index, bits, mask, priority);
}

}  // namespace edgedec::values

namespace cxxrtl {

// Its class template for all that a design's text makes slices and concatenations of.
template <size_t Bits, size_t Stop, size_t Start>
struct slice_expr<value<Bits>, Stop, Start>
    : edgedec::values::Slice<slice_expr<value<Bits>, Stop, Start>, value<Bits>, Stop, Start> {
    using slice_expr::Slice::Slice;
    using slice_expr::Slice::operator=;
};

template <size_t Bits, size_t Stop, size_t Start>
struct slice_expr<const value<Bits>, Stop, Start>
    : edgedec::values::Slice<slice_expr<const value<Bits>, Stop, Start>, const value<Bits>, Stop, Start> {
    using slice_expr::Slice::Slice;
};

template <size_t Bits, class Low>
struct concat_expr<value<Bits>, Low> : edgedec::values::Concat<concat_expr<value<Bits>, Low>, value<Bits>, Low> {
    using concat_expr::Concat::Concat;
    using concat_expr::Concat::operator=;
};

template <class Whole, size_t Stop, size_t Start, class Low>
struct concat_expr<slice_expr<Whole, Stop, Start>, Low> : edgedec::values::Concat<concat_expr<slice_expr<Whole, Stop, Start>, Low>, slice_expr<Whole, Stop, Start>, Low> {
    using concat_expr::Concat::Concat;
    using concat_expr::Concat::operator=;
};

template <class High, class Middle, class Low>
struct concat_expr<concat_expr<High, Middle>, Low> : edgedec::values::Concat<concat_expr<concat_expr<High, Middle>, Low>, concat_expr<High, Middle>, Low> {
    using concat_expr::Concat::Concat;
    using concat_expr::Concat::operator=;
};

template <size_t Bits, class Low>
struct concat_expr<const value<Bits>, Low> : edgedec::values::Concat<concat_expr<const value<Bits>, Low>, const value<Bits>, Low> {
    using concat_expr::Concat::Concat;
    using concat_expr::Concat::operator=;
};

template <class Whole, size_t Stop, size_t Start, class Low>
struct concat_expr<const slice_expr<Whole, Stop, Start>, Low> : edgedec::values::Concat<concat_expr<const slice_expr<Whole, Stop, Start>, Low>, const slice_expr<Whole, Stop, Start>, Low> {
    using concat_expr::Concat::Concat;
    using concat_expr::Concat::operator=;
};

template <class High, class Middle, class Low>
struct concat_expr<const concat_expr<High, Middle>, Low> : edgedec::values::Concat<concat_expr<const concat_expr<High, Middle>, Low>, const concat_expr<High, Middle>, Low> {
    using concat_expr::Concat::Concat;
    using concat_expr::Concat::operator=;
};

}  // namespace cxxrtl
