// Sixteen lanes of fp32 (F16), int32 (I16) and sixty-four bytes (B64), with the same bits on every instruction set.
//
// A file that includes this is compiled once per instruction set, with FORERUN_NS naming the namespace and the compiler's flags
// choosing the lanes: one zmm (avx512), two ymm (avx2), four NEON registers, or plain arrays (portable, the oracle).
// Rules that keep the bits equal: compile with -ffp-contract=off; `fma` is always fused; sums across lanes use one fixed tree;
// min and max are `a < b ? a : b` and `a > b ? a : b`; conversions round to nearest, ties to even.
// Only C headers here: inline functions of the C++ library would be emitted with these flags and might be picked by the linker.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && !defined(FORERUN_PORTABLE)
#define FORERUN_AVX512 1
#include <immintrin.h>
#elif defined(__AVX2__) && !defined(FORERUN_PORTABLE)
#define FORERUN_AVX2 1
#include <immintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__) && !defined(FORERUN_PORTABLE)
#define FORERUN_NEON 1
#include <arm_neon.h>
#endif

#ifndef FORERUN_NS
#error "define FORERUN_NS (the namespace of this instruction set) before including simd.h"
#endif

#if FORERUN_AVX512 || FORERUN_AVX2 || FORERUN_NEON
#define FORERUN_INLINE static inline __attribute__((always_inline))
#define FORERUN_INLINE_MEMBER inline __attribute__((always_inline))
#else  // arrays: inlining everything would take minutes to compile
#define FORERUN_INLINE static inline __attribute__((unused))
#define FORERUN_INLINE_MEMBER inline
#endif

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false alarms inside GCC's own AVX-512 header
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace forerun {
namespace FORERUN_NS {

FORERUN_INLINE uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}

FORERUN_INLINE float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

// fp16 -> fp32, exact, subnormals included.
FORERUN_INLINE float half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | ((rest & 0x3ffu) << 13) | (rest > 0x7c00u ? 0x400000u : 0u));
  if (rest >= 0x400u) return float_of(sign | ((rest << 13) + 0x38000000u));
  float tiny = (float)rest * 0x1p-24f;
  return float_of(sign | bits_of(tiny));
}

// fp32 -> fp16, nearest even, overflow to infinity; the same as vcvtps2ph.
FORERUN_INLINE uint16_t float_to_half(float x) {
  uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((rest >> 13) & 0x3ffu));
  if (rest >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
  if (rest < 0x38800000u) {  // subnormal in fp16: adding 0.5 places the rounding at the right bit
    float shifted = float_of(rest) + 0.5f;
    return (uint16_t)(sign | (bits_of(shifted) - 0x3f000000u));
  }
  uint32_t odd = (rest >> 13) & 1u;
  return (uint16_t)(sign | ((rest - 0x38000000u + 0xfffu + odd) >> 13));
}

FORERUN_INLINE float bfloat_to_float(uint16_t h) { return float_of((uint32_t)h << 16); }

FORERUN_INLINE uint16_t float_to_bfloat(float x) {
  uint32_t u = bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

#if FORERUN_AVX512

constexpr bool signed_bytes = false;
struct F16 { __m512 v; };
struct I16 { __m512i v; };
struct B64 { __m512i v; };
struct M16 { __mmask16 v; };

FORERUN_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
FORERUN_INLINE void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
FORERUN_INLINE F16 load_first(const float* p, size_t n) { return {_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p)}; }
FORERUN_INLINE void store_first(float* p, F16 a, size_t n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), a.v); }
FORERUN_INLINE F16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
FORERUN_INLINE F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
FORERUN_INLINE F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
FORERUN_INLINE F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
FORERUN_INLINE F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
FORERUN_INLINE F16 sqrt(F16 a) { return {_mm512_sqrt_ps(a.v)}; }
FORERUN_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
FORERUN_INLINE F16 fnma(F16 a, F16 b, F16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
FORERUN_INLINE F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
FORERUN_INLINE F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
FORERUN_INLINE M16 less(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
FORERUN_INLINE F16 select(M16 m, F16 yes, F16 no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }
FORERUN_INLINE I16 round_to_int(F16 a) { return {_mm512_cvtps_epi32(a.v)}; }
FORERUN_INLINE F16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
FORERUN_INLINE I16 as_int(F16 a) { return {_mm512_castps_si512(a.v)}; }
FORERUN_INLINE F16 as_float(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
FORERUN_INLINE I16 load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
FORERUN_INLINE void store(int32_t* p, I16 a) { _mm512_storeu_si512(p, a.v); }
FORERUN_INLINE I16 broadcast(int32_t x) { return {_mm512_set1_epi32(x)}; }
FORERUN_INLINE I16 add(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
FORERUN_INLINE I16 sub(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
FORERUN_INLINE I16 mul(I16 a, I16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
FORERUN_INLINE I16 bit_and(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }
FORERUN_INLINE I16 bit_or(I16 a, I16 b) { return {_mm512_or_si512(a.v, b.v)}; }
FORERUN_INLINE I16 min(I16 a, I16 b) { return {_mm512_min_epi32(a.v, b.v)}; }
FORERUN_INLINE I16 max(I16 a, I16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int N> FORERUN_INLINE I16 shift_left(I16 a) { return {_mm512_slli_epi32(a.v, N)}; }
template <int N> FORERUN_INLINE I16 shift_right(I16 a) { return {_mm512_srli_epi32(a.v, N)}; }
FORERUN_INLINE F16 load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
FORERUN_INLINE void store_half(uint16_t* p, F16 a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
FORERUN_INLINE F16 load_bfloat(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
FORERUN_INLINE I16 load_s8(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
FORERUN_INLINE I16 load_u8(const uint8_t* p) { return {_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
FORERUN_INLINE void store_s8(int8_t* p, I16 a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }

FORERUN_INLINE B64 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
FORERUN_INLINE B64 fill_bytes(uint8_t x) { return {_mm512_set1_epi8((char)x)}; }
FORERUN_INLINE B64 bit_and(B64 a, B64 b) { return {_mm512_and_si512(a.v, b.v)}; }
FORERUN_INLINE B64 bit_xor(B64 a, B64 b) { return {_mm512_xor_si512(a.v, b.v)}; }
FORERUN_INLINE B64 and_or(B64 a, B64 b, B64 c) { return {_mm512_ternarylogic_epi32(a.v, b.v, c.v, 0xEA)}; }  // (a & b) | c
// Shifts move bits across bytes: mask the result.
template <int N> FORERUN_INLINE B64 shift_right(B64 a) { return {_mm512_srli_epi16(a.v, N)}; }
template <int N> FORERUN_INLINE B64 shift_left(B64 a) { return {_mm512_slli_epi16(a.v, N)}; }
FORERUN_INLINE B64 table_of(const uint8_t* table16) { return {_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table16))}; }
FORERUN_INLINE B64 look_up(B64 table, B64 index) { return {_mm512_shuffle_epi8(table.v, index.v)}; }

// acc[r][lane] += sum over j < 4 and i < 4 of w[j][4 * lane + i] (unsigned) * a[32 * r + 4 * j + i] (signed); exact.
// BITS is a promise about the largest weight (< 2^BITS). Where signed_bytes, weights of 8 bits come as the signed w - 128.
template <int R, int BITS> FORERUN_INLINE void dot16(const B64* w, const int8_t* a, I16* acc) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      // Written out, since compilers broadcast into a register first: an instruction and a register more for each product.
      typedef int32_t Four __attribute__((may_alias, aligned(1)));
      __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc[r].v) : "v"(w[j].v), "m"(*(const Four*)(a + 32 * r + 4 * j)));
    }
  }
}

FORERUN_INLINE int32_t max_of(I16 a) { return _mm512_reduce_max_epi32(a.v); }
FORERUN_INLINE int32_t total(I16 a) { return _mm512_reduce_add_epi32(a.v); }  // wraps
FORERUN_INLINE float max_of(F16 a) {
  __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
FORERUN_INLINE void opaque(B64& a) { __asm__ volatile("" : "+v"(a.v)); }  // hides from the compiler that it did not change

FORERUN_INLINE float sum(F16 a) {
  __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

#elif FORERUN_AVX2

#if defined(__AVXVNNI__)
constexpr bool signed_bytes = false;
#else
constexpr bool signed_bytes = true;
#endif
struct F16 { __m256 lo, hi; };
struct I16 { __m256i lo, hi; };
struct B64 { __m256i lo, hi; };
struct M16 { __m256 lo, hi; };

FORERUN_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
FORERUN_INLINE void store(float* p, F16 a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
FORERUN_INLINE F16 load_first(const float* p, size_t n) {
  float t[16] = {0};
  memcpy(t, p, n * sizeof(float));
  return load(t);
}
FORERUN_INLINE void store_first(float* p, F16 a, size_t n) {
  float t[16];
  store(t, a);
  memcpy(p, t, n * sizeof(float));
}
FORERUN_INLINE F16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
FORERUN_INLINE F16 add(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
FORERUN_INLINE F16 sub(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
FORERUN_INLINE F16 mul(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
FORERUN_INLINE F16 div(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
FORERUN_INLINE F16 sqrt(F16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
FORERUN_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
FORERUN_INLINE F16 fnma(F16 a, F16 b, F16 c) { return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)}; }
FORERUN_INLINE F16 min(F16 a, F16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
FORERUN_INLINE F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
FORERUN_INLINE M16 less(F16 a, F16 b) { return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)}; }
FORERUN_INLINE F16 select(M16 m, F16 yes, F16 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
FORERUN_INLINE I16 round_to_int(F16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
FORERUN_INLINE F16 to_float(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
FORERUN_INLINE I16 as_int(F16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
FORERUN_INLINE F16 as_float(I16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
FORERUN_INLINE I16 load(const int32_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
FORERUN_INLINE void store(int32_t* p, I16 a) {
  _mm256_storeu_si256((__m256i*)p, a.lo);
  _mm256_storeu_si256((__m256i*)(p + 8), a.hi);
}
FORERUN_INLINE I16 broadcast(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
FORERUN_INLINE I16 add(I16 a, I16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
FORERUN_INLINE I16 sub(I16 a, I16 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
FORERUN_INLINE I16 mul(I16 a, I16 b) { return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)}; }
FORERUN_INLINE I16 bit_and(I16 a, I16 b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
FORERUN_INLINE I16 bit_or(I16 a, I16 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
FORERUN_INLINE I16 min(I16 a, I16 b) { return {_mm256_min_epi32(a.lo, b.lo), _mm256_min_epi32(a.hi, b.hi)}; }
FORERUN_INLINE I16 max(I16 a, I16 b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
template <int N> FORERUN_INLINE I16 shift_left(I16 a) { return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)}; }
template <int N> FORERUN_INLINE I16 shift_right(I16 a) { return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)}; }
FORERUN_INLINE F16 load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
FORERUN_INLINE void store_half(uint16_t* p, F16 a) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
FORERUN_INLINE F16 load_bfloat(const uint16_t* p) {
  __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 8)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
FORERUN_INLINE I16 load_s8(const int8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)), _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
FORERUN_INLINE I16 load_u8(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)), _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
FORERUN_INLINE void store_s8(int8_t* p, I16 a) {
  int32_t t[16];
  store(t, a);
  for (int i = 0; i < 16; i++) p[i] = (int8_t)t[i];
}

FORERUN_INLINE B64 load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
FORERUN_INLINE B64 fill_bytes(uint8_t x) { return {_mm256_set1_epi8((char)x), _mm256_set1_epi8((char)x)}; }
FORERUN_INLINE B64 bit_and(B64 a, B64 b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
FORERUN_INLINE B64 bit_xor(B64 a, B64 b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
FORERUN_INLINE B64 and_or(B64 a, B64 b, B64 c) {
  return {_mm256_or_si256(_mm256_and_si256(a.lo, b.lo), c.lo), _mm256_or_si256(_mm256_and_si256(a.hi, b.hi), c.hi)};
}
template <int N> FORERUN_INLINE B64 shift_right(B64 a) { return {_mm256_srli_epi16(a.lo, N), _mm256_srli_epi16(a.hi, N)}; }
template <int N> FORERUN_INLINE B64 shift_left(B64 a) { return {_mm256_slli_epi16(a.lo, N), _mm256_slli_epi16(a.hi, N)}; }
FORERUN_INLINE B64 table_of(const uint8_t* table16) {
  __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table16));
  return {t, t};
}
FORERUN_INLINE B64 look_up(B64 table, B64 index) {
  return {_mm256_shuffle_epi8(table.lo, index.lo), _mm256_shuffle_epi8(table.hi, index.hi)};
}

FORERUN_INLINE void opaque(B64& a) { __asm__ volatile("" : "+x"(a.lo), "+x"(a.hi)); }

#if defined(__AVXVNNI__)
template <int R, int BITS> FORERUN_INLINE void dot16(const B64* w, const int8_t* a, I16* acc) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      int32_t four;
      memcpy(&four, a + 32 * r + 4 * j, 4);
      __m256i x = _mm256_set1_epi32(four);
      acc[r].lo = _mm256_dpbusd_avx_epi32(acc[r].lo, w[j].lo, x);
      acc[r].hi = _mm256_dpbusd_avx_epi32(acc[r].hi, w[j].hi, x);
    }
  }
}
#else
// vpmaddubsw saturates at 16 bits. Pairs of 6-bit weights leave room for two of them, of 5-bit weights for four; signed bytes go in
// as |w| <= 128 times the activation with the sign of w, at most 2 * 128 * 127 a pair.
template <int BITS> FORERUN_INLINE __m256i dot16_half(__m256i w0, __m256i w1, __m256i w2, __m256i w3, const __m256i* x, __m256i acc) {
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i w[4] = {w0, w1, w2, w3};
  __m256i s[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++)
    s[j] = BITS < 8 ? _mm256_maddubs_epi16(w[j], x[j]) : _mm256_maddubs_epi16(_mm256_abs_epi8(w[j]), _mm256_sign_epi8(x[j], w[j]));
  if (BITS == 8) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) s[j] = _mm256_madd_epi16(s[j], ones);
    return _mm256_add_epi32(acc, _mm256_add_epi32(_mm256_add_epi32(s[0], s[1]), _mm256_add_epi32(s[2], s[3])));
  }
  __m256i p = _mm256_add_epi16(s[0], s[1]), q = _mm256_add_epi16(s[2], s[3]);
  if (BITS <= 5) return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_add_epi16(p, q), ones));
  return _mm256_add_epi32(acc, _mm256_add_epi32(_mm256_madd_epi16(p, ones), _mm256_madd_epi16(q, ones)));
}
template <int R, int BITS> FORERUN_INLINE void dot16(const B64* w, const int8_t* a, I16* acc) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    __m256i x[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      int32_t four;
      memcpy(&four, a + 32 * r + 4 * j, 4);
      x[j] = _mm256_set1_epi32(four);
    }
    acc[r].lo = dot16_half<BITS>(w[0].lo, w[1].lo, w[2].lo, w[3].lo, x, acc[r].lo);
    acc[r].hi = dot16_half<BITS>(w[0].hi, w[1].hi, w[2].hi, w[3].hi, x, acc[r].hi);
  }
}
#endif

FORERUN_INLINE int32_t max_of(I16 a) {
  __m256i b = _mm256_max_epi32(a.lo, a.hi);
  __m128i c = _mm_max_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  c = _mm_max_epi32(c, _mm_shuffle_epi32(c, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}
FORERUN_INLINE int32_t total(I16 a) {  // wraps
  __m256i b = _mm256_add_epi32(a.lo, a.hi);
  __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}
FORERUN_INLINE float max_of(F16 a) {
  __m256 b = _mm256_max_ps(a.lo, a.hi);
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
FORERUN_INLINE float sum(F16 a) {
  __m256 b = _mm256_add_ps(a.lo, a.hi);
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

#elif FORERUN_NEON
#include "simd_neon.inc"
#else
#include "simd_portable.inc"
#endif

FORERUN_INLINE F16 zero() { return broadcast(0.0f); }
FORERUN_INLINE F16 absolute(F16 a) { return as_float(bit_and(as_int(a), broadcast((int32_t)0x7fffffff))); }
FORERUN_INLINE F16 negate(F16 a) { return sub(broadcast(-0.0f), a); }

FORERUN_INLINE void store_bfloat(uint16_t* p, F16 a) {
  float t[16];
  store(t, a);
  for (int i = 0; i < 16; i++) p[i] = float_to_bfloat(t[i]);
}

}  // namespace FORERUN_NS
}  // namespace forerun
