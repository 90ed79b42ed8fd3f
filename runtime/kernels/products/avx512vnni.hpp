// The common part of the products of codes with AVX-512 VNNI: the intrinsics, and the dot product with four columns of a token.
#pragma once

#ifdef EDGEDEC_EMULATE_AVX512  // the same code over SIMDe, for machines without these instructions
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512/add.h>
#include <simde/x86/avx512/and.h>
#include <simde/x86/avx512/dpbusd.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/or.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/setzero.h>
#include <simde/x86/avx512/slli.h>
#include <simde/x86/avx512/srli.h>
#include <simde/x86/avx512/storeu.h>
#else
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns about its own header: bug 105593
#endif
#include <immintrin.h>
#endif

#include <cstdint>

namespace edgedec {
namespace {

typedef int32_t FourColumns __attribute__((may_alias, aligned(1)));

// Adds the products of codes, 16 rows x 4 columns, and the activations of these columns, four bytes at `x`.
inline void add_products(__m512i& sums, __m512i codes, const int8_t* x) {
    const FourColumns& four = *reinterpret_cast<const FourColumns*>(x);
#ifdef EDGEDEC_EMULATE_AVX512
    sums = _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(four));
#else
    // With the intrinsic, GCC reads the activations in an instruction of its own, and copies and spills sums in the loop.
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(codes), "m"(four));
#endif
}

}  // namespace
}  // namespace edgedec
