// The loops of attention.hpp over the vectors of a path. Each path's file includes this once and compiles it with its own
// instructions; as in ternary_tile.hpp everything is local, and nothing of the standard library is used.
//
// Lanes provides what exp_tile.hpp says, and kSums (accumulators that fit the registers), kRowsAtOnce (at most kRows), load and, for a
// single number, one, from the places of uint16_t (float16), int8_t and Nibbles too, and store_half.
#pragma once

#include "attention/append_tile.hpp"
#include "attention/attention.hpp"
#include "attention/elements.hpp"
#include "attention/label_tile.hpp"
#include "rows/exp_tile.hpp"

namespace edgedec {
namespace {

constexpr int64_t kValueTile = 128;     // slots whose values stay in the L1 cache while all dimensions are summed

// A number of rows as a type.
template <int N>
struct Count {
    static constexpr int kRows = N;
};

// Calls body(Count<n>{}), where n is 1 to Most.
template <int Most, class Body>
EDGEDEC_INLINE void with_count(int n, const Body& body) {
    if (n == Most) return body(Count<Most>{});
    if constexpr (Most > 1) with_count<Most - 1>(n, body);
}

// Up to Lanes::kRowsAtOnce query rows over one head's cache of elements T.
template <class Lanes, class T>
class Rows {
    using Type = typename Lanes::Type;
    using Place = typename Places<T>::Type;
    static constexpr int kMost = Lanes::kRowsAtOnce;
    static constexpr int64_t kWidth = Lanes::kWidth;
    static constexpr bool kScaled = sizeof(T) == 1;
    static constexpr bool kNibbles = __is_same(T, Nibbles);
    static constexpr int64_t kLine = (kNibbles ? 128 : 64) / sizeof(T);  // elements of a line of the processor's cache

  public:
    // `segment` is that of the first row. It becomes that of the last row.
    Rows(const AttentionBlock& block, int64_t first, int count, const Segment*& segment)
        : b_(*block.rows), head_(block.head), count_(count), size_(b_.layout.head_dim), row_(b_.layout.row()),
          stride_(block.stride) {
        keys_ = Places<T>::first(b_.cache + b_.layout.keys(head_));
        values_ = Places<T>::first(b_.cache + b_.layout.values(head_));
        key_scales_ = reinterpret_cast<const float*>(b_.cache + b_.layout.key_scales(head_));
        value_scales_ = reinterpret_cast<const float*>(b_.cache + b_.layout.value_scales(head_));
        queries_ = block.scratch;
        sums_ = queries_ + kMost * size_;
        weights_ = sums_ + kMost * size_;
        scaled_ = kScaled ? weights_ + kMost * stride_ : weights_;
        const int64_t width = b_.layout.kv_heads * b_.group * size_;
        for (int r = 0; r < count_; ++r) {
            const int64_t row = first + r, token = row / b_.group;
            while (token >= segment->first + segment->tokens) ++segment;
            tokens_[r] = token;
            segments_[r] = segment;
            places_[r] = token * width + (head_ * b_.group + row % b_.group) * size_;
            rotate(b_.queries + places_[r], size_, b_.rotary, b_.positions[token], queries_ + r * size_);
            // A row sees the committed slots [0, sinks) and [from, past); without a window, the latter are all.
            const int64_t past = segment->past;
            sinks_[r] = !b_.window ? 0 : b_.sinks < past ? b_.sinks : past;
            const int64_t from = b_.window ? b_.positions[token] - b_.window + 1 : 0;
            from_[r] = from < sinks_[r] ? sinks_[r] : from > past ? past : from;
        }
    }

    void run() {
        pieces(0, count_, 0, [&](int first, int n, int64_t start, int64_t stop) {
            with_count<kMost>(n, [&](auto rows) { score_piece<decltype(rows)::kRows>(first, start, stop); });
        });
        for (int r = 0; r < count_; ++r) {
            const Segment& segment = *segments_[r];
            float top = -__builtin_inff();
            largest(r, 0, sinks_[r], top);
            largest(r, from_[r], segment.past, top);
            each_run(r, [&](int64_t start, int64_t stop) { largest(r, start, stop, top); });
            weigh(r, 0, sinks_[r], top);
            const int64_t weighed = (sinks_[r] + kWidth - 1) / kWidth * kWidth;
            weigh(r, from_[r] > weighed ? from_[r] : weighed, segment.end(), top);
        }
        for (int64_t i = 0; i < count_ * size_; ++i) sums_[i] = 0.0f;
        pieces(0, count_, 0, [&](int first, int n, int64_t start, int64_t stop) {
            with_count<kMost>(n, [&](auto rows) { add_piece<decltype(rows)::kRows>(first, start, stop); });
        });
        for (int r = 0; r < count_; ++r) {
            each_run(r, [&](int64_t start, int64_t stop) { add<1>(r, start, stop); });
            for (int64_t d = 0; d < size_; ++d) b_.out[places_[r] + d] = sums_[r * size_ + d] / totals_[r];
        }
    }

  private:
    // Calls body(first, n, start, stop) for pieces of the slots, where rows [first, first + n) have the slots [start, stop)
    // in the same blocks. Together the pieces of a row are all of its slots from `start` on, in order.
    template <class Body>
    void pieces(int first, int n, int64_t start, const Body& body) const {
        int64_t stop = segments_[first]->end();
        for (int r = first + 1; r < first + n; ++r)
            if (segments_[r] != segments_[r - 1] && segments_[r]->shared < stop) stop = segments_[r]->shared;
        if (stop > start) body(first, n, start, stop);
        else stop = start;
        for (int r = first, next; r < first + n; r = next) {
            for (next = r + 1; next < first + n; ++next)
                if (segments_[next] != segments_[next - 1] && segments_[next]->shared <= stop) break;
            if (segments_[r]->end() > stop) pieces(r, next - r, stop, body);
        }
    }

    // Computes the scores of those of the slots [start, stop) that a row of [first, first + N) may see.
    template <int N>
    void score_piece(int first, int64_t start, int64_t stop) {
        int64_t sinks = 0, from = stop;
        for (int r = first; r < first + N; ++r) {
            sinks = sinks_[r] > sinks ? sinks_[r] : sinks;
            from = from_[r] < from ? from_[r] : from;
        }
        if (sinks > start) score<N>(first, start, sinks < stop ? sinks : stop);
        score<N>(first, from > start ? from : start, stop);
    }

    // Computes the scores of slots [start, stop), and of some around them.
    template <int N>
    void score(int first, int64_t start, int64_t stop) {
        constexpr int kFit = N >= Lanes::kSums ? 1 : Lanes::kSums / N;
        constexpr int kStrips = kFit < 8 ? kFit : 8;  // a processor does not prefetch more streams
        const int64_t begin = start / kWidth * kWidth, end = (stop + kWidth - 1) / kWidth * kWidth;
        score_vectors<N, kStrips>(first, begin, end);
        if (b_.cap <= 0) return;
        const float twice = 2.0f / b_.cap;
        for (int r = first; r < first + N; ++r)
            for (float *at = weights_ + r * stride_ + begin, *last = weights_ + r * stride_ + end; at < last; at += kWidth)
                Lanes::store(at, cap_of<Lanes>(Lanes::load(at), b_.cap, twice));
    }

    // Computes the scores of whole vectors of slots, S vectors at a time, and the last ones by fewer.
    template <int N, int S>
    void score_vectors(int first, int64_t slot, int64_t stop) {
        for (; slot + S * kWidth <= stop; slot += S * kWidth)
            score_strips<N, S>(first, slot, slot + 2 * S * kWidth <= stop ? slot + S * kWidth : slot);
        if constexpr (S > 1) score_vectors<N, S / 2>(first, slot, stop);
    }

    // Computes the scores of S vectors of slots from `slot` on, and prefetches the keys of those from `next` on.
    template <int N, int S>
    void score_strips(int first, int64_t slot, int64_t next) {
        Place at[S], ahead[S];
        int64_t place[S];  // slots of the cache
        for (int s = 0; s < S; ++s) {
            place[s] = segments_[first]->slot(slot + s * kWidth);
            at[s] = keys_ + (place[s] / kKeyBlock * kKeyBlock * row_ + place[s] % kKeyBlock);
            const int64_t later = segments_[first]->slot(next + s * kWidth);
            ahead[s] = keys_ + (later / kKeyBlock * kKeyBlock * row_ + later % kKeyBlock);
        }
        const float* queries = queries_ + first * size_;
        float* weights = weights_ + first * stride_ + slot;
        Type sums[N][S];
        for (int n = 0; n < N; ++n)
            for (int s = 0; s < S; ++s) sums[n][s] = Lanes::broadcast(0.0f);
        for (int64_t d = 0; d < size_; ++d) {
            Type keys[S];
            for (int s = 0; s < S; ++s) keys[s] = Lanes::load(at[s] + d * kKeyBlock);
            if (!(d & 1))
                for (int s = 0; s < S; ++s) __builtin_prefetch(Places<T>::address(ahead[s] + d * kKeyBlock));
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) {
                const Type query = Lanes::broadcast(queries[n * size_ + d]);
                for (int s = 0; s < S; ++s) sums[n][s] = Lanes::fma(query, keys[s], sums[n][s]);
            }
        }
        for (int s = 0; s < S; ++s)
            for (int n = 0; n < N; ++n) {
                Type sum = sums[n][s];
                if (kScaled) sum = Lanes::mul(sum, Lanes::load(key_scales_ + place[s]));
                Lanes::store(weights + n * stride_ + s * kWidth, Lanes::mul(sum, Lanes::broadcast(b_.scale)));
            }
    }

    // Raises `top` to the largest of a row's scores [start, stop). NaN is ignored here; exp_of passes it on.
    void largest(int r, int64_t start, int64_t stop, float& top) const {
        const float* scores = weights_ + r * stride_;
        Type most = Lanes::broadcast(top);
        for (; start + kWidth <= stop; start += kWidth) most = Lanes::max(Lanes::load(scores + start), most);
        float lanes[kWidth];
        Lanes::store(lanes, most);
        for (int64_t i = 0; i < kWidth; ++i) top = lanes[i] > top ? lanes[i] : top;
        for (; start < stop; ++start) top = scores[start] > top ? scores[start] : top;
    }

    // Turns the scores of slots [start, stop), and of some around them, into weights. It must run once for each slot.
    void weigh(int r, int64_t start, int64_t stop, float top) {
        float *weights = weights_ + r * stride_, *scaled = scaled_ + r * stride_;
        const Type most = Lanes::broadcast(top);
        for (int64_t slot = start / kWidth * kWidth; slot < stop; slot += kWidth) {
            const Type weight = exp_of<Lanes>(Lanes::sub(Lanes::load(weights + slot), most));
            Lanes::store(weights + slot, weight);
            if (kScaled)
                Lanes::store(scaled + slot, Lanes::mul(weight, Lanes::load(value_scales_ + segments_[r]->slot(slot))));
        }
    }

    // Calls `body` for each run of slots of this pass that a row sees, in order.
    template <class Body>
    void each_run(int r, Body body) const {
        const Segment& segment = *segments_[r];
        const int64_t position = b_.positions[tokens_[r]], *positions = b_.positions + segment.first;
        const uint64_t* bits = b_.visible + tokens_[r] * b_.words;
        int64_t start = -1;
        for (int64_t j = 0; j <= segment.tokens; ++j) {
            bool seen = j < segment.tokens && (bits[j / 64] >> (j % 64) & 1);
            if (seen && b_.window) seen = positions[j] > position - b_.window || positions[j] < b_.sinks;
            if (seen && start < 0) start = j;
            if (!seen && start >= 0) {
                body(segment.past + start, segment.past + j);
                start = -1;
            }
        }
    }

    // Adds the weighted values of the committed slots among [start, stop) to the sums of rows [first, first + N). The slots
    // of a pass are only in pieces whose rows are all of one segment.
    template <int N>
    void add_piece(int first, int64_t start, int64_t stop) {
        const int64_t past = segments_[first]->past, sinks = sinks_[first];
        const int64_t end = stop < past ? stop : past;
        int64_t last = start;
        for (int r = first; r < first + N; ++r) last = from_[r] > last ? from_[r] : last;
        add<N>(first, start, sinks < end ? sinks : end);
        for (int r = first; r < first + N; ++r)
            add<1>(r, from_[r] > start ? from_[r] : start, last < end ? last : end);
        add<N>(first, last, end);
    }

    // Adds the weighted values of slots [start, stop), if there are any, to the sums of rows [first, first + N).
    template <int N>
    void add(int first, int64_t start, int64_t stop) {
        constexpr int kChunk = N >= Lanes::kSums ? 1 : Lanes::kSums / N;
        for (int64_t tile = start; tile < stop; tile += kValueTile) {
            const int64_t end = tile + kValueTile < stop ? tile + kValueTile : stop;
            float totals[N];
            for (int n = 0; n < N; ++n) totals[n] = totals_[first + n];
            for (int64_t slot = tile; slot < end; ++slot)
                for (int n = 0; n < N; ++n) totals[n] += weights_[(first + n) * stride_ + slot];
            for (int n = 0; n < N; ++n) totals_[first + n] = totals[n];
            int64_t d = 0;
            add_chunks<N, kChunk>(first, tile, end, d);
            for (; d < size_; ++d)
                for (int64_t slot = tile; slot < end; ++slot) {
                    const float value = Lanes::one(values_ + (segments_[first]->slot(slot) * row_ + d));
                    for (int n = 0; n < N; ++n) {
                        float& sum = sums_[(first + n) * size_ + d];
                        sum = __builtin_fmaf(scaled_[(first + n) * stride_ + slot], value, sum);
                    }
                }
        }
    }

    // Adds the weighted values of slots [start, stop) in the whole vectors of dimensions from `d` on, C vectors at a time, and
    // the last ones by fewer. `d` becomes the dimension after them.
    template <int N, int C>
    void add_chunks(int first, int64_t start, int64_t stop, int64_t& d) {
        for (; d + C * kWidth <= size_; d += C * kWidth) add_chunk<N, C>(first, start, stop, d);
        if constexpr (C > 4 && C % 4 == 0)
            for (; d + C / 4 * 3 * kWidth <= size_; d += C / 4 * 3 * kWidth)
                add_chunk<N, C / 4 * 3>(first, start, stop, d);
        if constexpr (C > 1) add_chunks<N, C / 2>(first, start, stop, d);
    }

    // Returns the end of the slots from `slot` on, and before `stop`, that lie one after another in the cache.
    static int64_t run_end(const Segment& segment, int64_t slot, int64_t stop) {
        int64_t block = slot / kKeyBlock;
        for (const int64_t last = (stop - 1) / kKeyBlock; block < last; ++block)
            if (segment.blocks[block + 1] != segment.blocks[block] + 1) break;
        return (block + 1) * kKeyBlock < stop ? (block + 1) * kKeyBlock : stop;
    }

    template <int N, int C>
    void add_chunk(int first, int64_t start, int64_t stop, int64_t d) {
        Type sums[N][C];
        for (int n = 0; n < N; ++n)
            for (int c = 0; c < C; ++c) sums[n][c] = Lanes::load(sums_ + (first + n) * size_ + d + c * kWidth);
        const float* weights = scaled_ + first * stride_;
        const int64_t stride = stride_, row = row_;
        for (int64_t slot = start; slot < stop;) {
            const int64_t end = run_end(*segments_[first], slot, stop);
            Place values = values_ + (segments_[first]->slot(slot) * row + d);
            for (; slot < end; ++slot, values += row) {
                Type here[C];
                for (int c = 0; c < C; ++c) here[c] = Lanes::load(values + c * kWidth);
                // Processors do not prefetch across pages by themselves. An address outside the cache is ignored.
                for (int64_t c = 0; c < C * kWidth; c += kLine) __builtin_prefetch(Places<T>::address(values + (kKeyBlock * row + c)));
#pragma GCC unroll 8
                for (int n = 0; n < N; ++n) {
                    const Type weight = Lanes::broadcast(weights[n * stride + slot]);
                    for (int c = 0; c < C; ++c) sums[n][c] = Lanes::fma(weight, here[c], sums[n][c]);
                }
            }
        }
        for (int n = 0; n < N; ++n)
            for (int c = 0; c < C; ++c) Lanes::store(sums_ + (first + n) * size_ + d + c * kWidth, sums[n][c]);
    }

    const AttentionRows& b_;
    const int64_t head_;
    const int count_;
    const int64_t size_, row_, stride_;  // row_: elements of a stored row of values
    Place keys_, values_;
    const float *key_scales_, *value_scales_;
    float *queries_, *sums_, *weights_, *scaled_;
    const Segment* segments_[kMost];
    int64_t tokens_[kMost], places_[kMost], sinks_[kMost], from_[kMost];
    float totals_[kMost] = {};
};

// Computes the rows of a block, some at a time.
template <class Lanes, class T>
void attend_rows(const AttentionBlock& block) {
    const Segment* segment = block.rows->segments + block.segment;
    for (int64_t done = 0; done < block.count; done += Lanes::kRowsAtOnce) {
        const int64_t left = block.count - done;
        const int count = left < Lanes::kRowsAtOnce ? static_cast<int>(left) : Lanes::kRowsAtOnce;
        Rows<Lanes, T>(block, block.first + done, count, segment).run();
    }
}

}  // namespace
}  // namespace edgedec

// Defines the functions of a path for the table in dispatch.cpp.
#define EDGEDEC_DEFINE_ATTENTION(name, Lanes)                                           \
    namespace edgedec {                                                                 \
    void attend_##name(const AttentionBlock& block) {                                   \
        if (block.rows->layout.bits == 32) return attend_rows<Lanes, float>(block);     \
        if (block.rows->layout.bits == 16) return attend_rows<Lanes, uint16_t>(block);  \
        if (block.rows->layout.bits == 4) return attend_rows<Lanes, Nibbles>(block);    \
        attend_rows<Lanes, int8_t>(block);                                              \
    }                                                                                   \
    void append_##name(const AttentionRows& rows, int64_t head) { append_rows<Lanes>(rows, head); } \
    void score_##name(const LabelBlocks& all) { score_blocks<Lanes>(all); }                          \
    void combine_##name(const float* numbers, int64_t rank, const float* directions, int64_t size, float* out) { \
        combine_directions<Lanes>(numbers, rank, directions, size, out);                                        \
    }                                                                                                          \
    }  // namespace edgedec
