// Ternary products with AMX. A quarter of a line, masked, has the order of a row of a tile: 16 rows x 4 columns. So four lines
// become one tile of 64 columns, which is multiplied by the codes of up to 16 tokens at once. Each line is unpacked once for 32
// tokens.
#include "products/amx.hpp"

#if EDGEDEC_AMX

#ifdef EDGEDEC_EMULATE_AVX512  // the same code over SIMDe, for machines without these instructions
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512/and.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/srli.h>
#include <simde/x86/avx512/storeu.h>
#else
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns about its own header: bug 105593
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#endif

#include "products/ternary_tile.hpp"

namespace edgedec {
namespace {

constexpr int64_t kStepLines = 4;     // lines of a tile
constexpr int64_t kStepColumns = kStepLines * kLineColumns;
constexpr int64_t kTileBytes = 1024;  // bytes of a whole tile
constexpr int kBlockTokens = 16;      // rows of a tile
constexpr int kRing = 4;              // unpacked tiles in memory, of which two are ahead of the one that is multiplied
static_assert(kBlockTokens == kPanelTokens && kStepColumns == kPanelColumns);

inline void unpack(const uint8_t* line, int64_t lines, uint8_t* to) {
    const __m512i three = _mm512_set1_epi8(3);
    for (int64_t i = 0; i < lines; ++i, line += kLineBytes, to += 4 * kLineBytes) {
        prefetch_line(line);
        const __m512i codes = _mm512_loadu_si512(line);
#pragma GCC unroll 4
        for (int four = 0; four < 4; ++four)
            _mm512_storeu_si512(to + four * kLineBytes, _mm512_and_si512(_mm512_srli_epi16(codes, 2 * four), three));
    }
}

// The products of up to T tokens, 16 or 32, from `first` on. Tiles: 0 and 1 are sums, 2 codes, and 3 and 4 tokens.
class Dot {
  public:
    static constexpr Order kOrder = Order::rows;
    static constexpr bool kRagged = true;
    const int tokens;

    Dot(const Staged& x, int64_t first)
        : tokens(static_cast<int>(x.tokens - first < 2 * kBlockTokens ? x.tokens - first : 2 * kBlockTokens)),
          codes_(x.codes + first * x.stride),
          block_bytes_((x.stride + kStepColumns - 1) / kStepColumns * kTileBytes),
          panels_(x.panels + first / kBlockTokens * block_bytes_) {
        const int64_t one = tokens < kBlockTokens ? tokens : kBlockTokens, other = tokens - one;
        TileShapes shapes;
        shapes.set(0, one, kLineBytes);
        shapes.set(2, kBlockTokens, kLineBytes);
        shapes.set(3, one, kStepColumns);
        if (other) {
            shapes.set(1, other, kLineBytes);
            shapes.set(4, other, kStepColumns);
        }
        configure_tiles(shapes);
    }
    ~Dot() { release_tiles(); }
    Dot(const Dot&) = delete;
    Dot& operator=(const Dot&) = delete;

    template <int T>
    void run(const uint8_t* line, int64_t count, const int8_t* codes, int64_t, int32_t (*sums)[kTileRows]) {
        constexpr bool kTwo = T > kBlockTokens;
        const int64_t column = codes - codes_;  // a multiple of 64, or, in groups of 32, of 32
        const int8_t* x = panels_ + column / kStepColumns * kTileBytes + column % kStepColumns;
        const int8_t* second = x + block_bytes_;
        const int64_t steps = count / kStepLines, rest = count % kStepLines;
        alignas(64) uint8_t ring[kRing][kTileBytes];
        clear_tile<0>();
        if constexpr (kTwo) clear_tile<1>();
        for (int64_t step = 0; step < 2 && step < steps; ++step)
            unpack(line + step * kStepLines * kLineBytes, kStepLines, ring[step]);
        for (int64_t step = 0; step < steps; ++step, x += kTileBytes, second += kTileBytes) {
            if (step + 2 < steps)
                unpack(line + (step + 2) * kStepLines * kLineBytes, kStepLines, ring[(step + 2) % kRing]);
            step_of<kTwo>(ring[step % kRing], x, second);
        }
        if (rest) {  // the other columns of the tile of tokens are multiplied by zeros
            __builtin_memset(ring[0], 0, kTileBytes);
            unpack(line + steps * kStepLines * kLineBytes, rest, ring[0]);
            step_of<kTwo>(ring[0], x, second);
        }
        store_tile<0>(sums[0], kLineBytes);
        if constexpr (kTwo) store_tile<1>(sums[kBlockTokens], kLineBytes);
    }

  private:
    // Adds the products of one tile of codes.
    template <bool Two>
    static EDGEDEC_INLINE void step_of(const uint8_t* codes, const int8_t* x, const int8_t* second) {
        load_tile<2>(codes, kLineBytes);
        load_tile<3>(x, kStepColumns);
        multiply<0, 3, 2, false>();
        if constexpr (Two) {
            load_tile<4>(second, kStepColumns);
            multiply<1, 4, 2, false>();
        }
    }

    const int8_t* const codes_;
    const int64_t block_bytes_;  // bytes of the panels of 16 tokens
    const int8_t* const panels_;
};

}  // namespace

void tile_amx(const Ternary& w, const Staged& x, int64_t tile, float* out, int64_t stride) {
    if (x.tokens < kLeastPanelTokens) return tile_avx512vnni(w, x, tile, out, stride);
    for (int64_t first = 0; first < x.tokens; first += 2 * kBlockTokens) {
        Dot dot(x, first);
        if (dot.tokens > kBlockTokens)
            sweep<2 * kBlockTokens>(w, x, tile, first, out, stride, dot);
        else
            sweep<kBlockTokens>(w, x, tile, first, out, stride, dot);
    }
}

}  // namespace edgedec

#endif
