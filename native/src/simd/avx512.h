// Sixteen lanes in one 512-bit register (AVX-512 F, BW, VL, DQ, VNNI). The meanings are those of
// portable.h. Under ROOST_EMULATE_AVX512 the intrinsics are functions of a test-only library.
#pragma once

#ifdef ROOST_EMULATE_AVX512
#include "../../tests/emulated_avx512.h"
#else
// GCC 12's own header starts a register from itself and then warns of it (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#include <cstdint>

#define ROOST_INLINE inline __attribute__((always_inline))

namespace roost::ROOST_ISA {

constexpr int kLanes = 16;

ROOST_INLINE float f16_to_f32(uint16_t bits) {
  return _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_castsi128_si256(_mm_cvtsi32_si128(bits))));
}
ROOST_INLINE float bf16_to_f32(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof(value));
  return value;
}
ROOST_INLINE uint16_t f32_to_bf16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

struct Mask {
  __mmask16 m;
  static ROOST_INLINE Mask first(int64_t n) { return {static_cast<__mmask16>(n >= kLanes ? 0xffffu : (1u << n) - 1u)}; }
  ROOST_INLINE uint32_t bits() const { return m; }
  ROOST_INLINE bool any() const { return m != 0; }
};
ROOST_INLINE Mask operator&(Mask a, Mask b) { return {static_cast<__mmask16>(a.m & b.m)}; }
ROOST_INLINE Mask operator|(Mask a, Mask b) { return {static_cast<__mmask16>(a.m | b.m)}; }

struct F32;

struct I32 {
  __m512i v;

  static ROOST_INLINE I32 zero() { return {_mm512_setzero_si512()}; }
  static ROOST_INLINE I32 splat(int32_t x) { return {_mm512_set1_epi32(x)}; }
  static ROOST_INLINE I32 load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
  static ROOST_INLINE I32 load_i8(const int8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  ROOST_INLINE void store(int32_t* p) const { _mm512_storeu_si512(p, v); }
  ROOST_INLINE void store_i8(int8_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
  }
  ROOST_INLINE void store_i16_even_odd(int16_t* p) const {
    const __m256i words = _mm512_cvtepi32_epi16(v);
    const __m256i swapped = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), swapped);
  }
  template <int N>
  ROOST_INLINE I32 shift_left() const {
    return {_mm512_slli_epi32(v, N)};
  }
  template <int N>
  ROOST_INLINE I32 shift_right() const {  // arithmetic
    return {_mm512_srai_epi32(v, N)};
  }
  template <int N>
  ROOST_INLINE I32 shift_right_logical() const {
    return {_mm512_srli_epi32(v, N)};
  }
  ROOST_INLINE int32_t max_lane() const {
    const __m256i a = _mm256_max_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1));
    return _mm_cvtsi128_si32(b);
  }
  ROOST_INLINE int32_t sum() const {
    const __m256i a = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1));
    return _mm_cvtsi128_si32(b);
  }
  ROOST_INLINE F32 to_f32() const;
  ROOST_INLINE F32 as_f32() const;
};
ROOST_INLINE I32 operator+(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
ROOST_INLINE I32 operator-(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
ROOST_INLINE I32 operator&(I32 a, I32 b) { return {_mm512_and_si512(a.v, b.v)}; }
ROOST_INLINE I32 operator|(I32 a, I32 b) { return {_mm512_or_si512(a.v, b.v)}; }
ROOST_INLINE I32 operator^(I32 a, I32 b) { return {_mm512_xor_si512(a.v, b.v)}; }
ROOST_INLINE I32 max(I32 a, I32 b) { return {_mm512_max_epi32(a.v, b.v)}; }
ROOST_INLINE I32 min(I32 a, I32 b) { return {_mm512_min_epi32(a.v, b.v)}; }
ROOST_INLINE Mask less(I32 a, I32 b) { return {_mm512_cmpgt_epi32_mask(b.v, a.v)}; }
ROOST_INLINE Mask equal(I32 a, I32 b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
ROOST_INLINE I32 select(Mask m, I32 a, I32 b) { return {_mm512_mask_blend_epi32(m.m, b.v, a.v)}; }

struct F32 {
  static constexpr int kLanes = 16;
  __m512 v;

  static ROOST_INLINE F32 zero() { return {_mm512_setzero_ps()}; }
  static ROOST_INLINE F32 splat(float x) { return {_mm512_set1_ps(x)}; }
  static ROOST_INLINE F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static ROOST_INLINE F32 load_partial(const float* p, int64_t n) {
    return {_mm512_maskz_loadu_ps(Mask::first(n).m, p)};
  }
  static ROOST_INLINE F32 load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static ROOST_INLINE F32 load_bf16(const uint16_t* p) {
    const __m512i a = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(a, 16))};
  }
  static ROOST_INLINE void load_bf16_pairs(const uint16_t* p, F32& even, F32& odd) {
    const __m512i pairs = _mm512_loadu_si512(p);
    even = {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
    odd = {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  ROOST_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
  ROOST_INLINE void store_partial(float* p, int64_t n) const { _mm512_mask_storeu_ps(p, Mask::first(n).m, v); }
  // Not vcvtneps2bf16: that one flushes subnormals to zero, and the others do not.
  ROOST_INLINE void store_bf16(uint16_t* p) const {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i narrow = _mm512_srli_epi32(_mm512_mask_blend_epi32(is_nan, rounded, quiet), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(narrow));
  }

  ROOST_INLINE float sum() const {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
  }
  ROOST_INLINE float max_lane() const {
    const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
  }
  ROOST_INLINE I32 to_i32() const { return {_mm512_cvtps_epi32(v)}; }
  ROOST_INLINE I32 as_i32() const { return {_mm512_castps_si512(v)}; }
};

ROOST_INLINE F32 I32::to_f32() const { return {_mm512_cvtepi32_ps(v)}; }
ROOST_INLINE F32 I32::as_f32() const { return {_mm512_castsi512_ps(v)}; }
ROOST_INLINE F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
ROOST_INLINE F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
ROOST_INLINE F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
ROOST_INLINE F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
ROOST_INLINE F32 operator-(F32 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
ROOST_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
ROOST_INLINE F32 fnma(F32 a, F32 b, F32 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
ROOST_INLINE F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
ROOST_INLINE F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
ROOST_INLINE F32 abs(F32 a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)}; }
ROOST_INLINE F32 sqrt(F32 a) { return {_mm512_sqrt_ps(a.v)}; }
ROOST_INLINE F32 round(F32 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
ROOST_INLINE Mask less(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
ROOST_INLINE Mask equal(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
ROOST_INLINE F32 select(Mask m, F32 a, F32 b) { return {_mm512_mask_blend_ps(m.m, b.v, a.v)}; }

struct Codes {
  __m512i v;
  static ROOST_INLINE Codes load(const uint8_t* p) { return {_mm512_load_si512(p)}; }
  ROOST_INLINE void store(uint8_t* p) const { _mm512_store_si512(p, v); }
  template <int N>
  ROOST_INLINE Codes shift_left() const {
    return {_mm512_slli_epi16(v, N)};
  }
  template <int N>
  ROOST_INLINE Codes shift_right() const {
    return {_mm512_srli_epi16(v, N)};
  }
  ROOST_INLINE Codes keep(uint8_t mask) const {
    return {_mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask)))};
  }
};
ROOST_INLINE Codes merge(Codes base, Codes bits, uint8_t mask) {
  constexpr int kBaseOrBitsAndMask = 0xf8;
  return {_mm512_ternarylogic_epi32(base.v, bits.v, _mm512_set1_epi8(static_cast<char>(mask)), kBaseOrBitsAndMask)};
}

template <int kBits>
struct Dot {
  static constexpr bool kCentred = false;
  I32 acc = I32::zero();
  template <int kStep>
  ROOST_INLINE void add(const Codes& codes, const int8_t* x) {
    int32_t bytes;
    __builtin_memcpy(&bytes, x, sizeof(bytes));
    acc.v = _mm512_dpbusd_epi32(acc.v, codes.v, _mm512_set1_epi32(bytes));
  }
  template <int kSteps>
  ROOST_INLINE I32 total() const {
    return acc;
  }
};

struct Words {
  __m512i v;
  static ROOST_INLINE Words even_of(const Codes& codes) {
    return {_mm512_and_si512(codes.v, _mm512_set1_epi32(0x00ff00ff))};
  }
  static ROOST_INLINE Words odd_of(const Codes& codes) { return {_mm512_srli_epi16(codes.v, 8)}; }
  static ROOST_INLINE Words load(const uint8_t* p) { return {_mm512_load_si512(p)}; }
  ROOST_INLINE void store(uint8_t* p) const { _mm512_store_si512(p, v); }
  ROOST_INLINE Words minus(int16_t x) const { return {_mm512_sub_epi16(v, _mm512_set1_epi32((x & 0xffff) * 0x10001))}; }
};

struct WordDot {
  I32 acc = I32::zero();
  ROOST_INLINE void add(const Words& words, const int16_t* x) {
    int32_t pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    acc.v = _mm512_dpwssd_epi32(acc.v, words.v, _mm512_set1_epi32(pair));
  }
};

constexpr int kTileRows = 8;
constexpr int64_t kAheadGroups = 8;
constexpr int64_t kUnpackFromRows = INT64_MAX;  // unpacking hides behind the dot products
constexpr int kFloatTileRows = 8;
constexpr int kFloatAccumulators = 16;

ROOST_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace roost::ROOST_ISA
