// Sixteen lanes in two 256-bit registers (AVX2, FMA, F16C). The meanings are those of portable.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define ROOST_INLINE inline __attribute__((always_inline))

namespace roost::ROOST_ISA {

constexpr int kLanes = 16;

ROOST_INLINE float f16_to_f32(uint16_t bits) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))); }
ROOST_INLINE float bf16_to_f32(uint16_t bits) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(static_cast<uint32_t>(bits) << 16))));
}
ROOST_INLINE uint16_t f32_to_bf16(float value) {
  const uint32_t bits = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_castps_si128(_mm_set_ss(value))));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

struct Mask {
  __m256i lo, hi;  // all ones or all zeros a lane
  static ROOST_INLINE Mask first(int64_t n) {
    const __m256i count = _mm256_set1_epi32(n > kLanes ? kLanes : static_cast<int>(n));
    return {_mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
            _mm256_cmpgt_epi32(count, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15))};
  }
  ROOST_INLINE uint32_t bits() const {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(lo))) |
           static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(hi))) << 8;
  }
  ROOST_INLINE bool any() const { return bits() != 0; }
};
ROOST_INLINE Mask operator&(Mask a, Mask b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
ROOST_INLINE Mask operator|(Mask a, Mask b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }

struct F32;

struct I32 {
  __m256i lo, hi;

  static ROOST_INLINE I32 zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static ROOST_INLINE I32 splat(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static ROOST_INLINE I32 load(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
  }
  static ROOST_INLINE I32 load_i8(const int8_t* p) {
    return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  ROOST_INLINE void store(int32_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), hi);
  }
  ROOST_INLINE void store_i8(int8_t* p) const {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  }
  ROOST_INLINE void store_i16_even_odd(int16_t* p) const {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
    const __m256i swapped = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), swapped);
  }
  template <int N>
  ROOST_INLINE I32 shift_left() const {
    return {_mm256_slli_epi32(lo, N), _mm256_slli_epi32(hi, N)};
  }
  template <int N>
  ROOST_INLINE I32 shift_right() const {  // arithmetic
    return {_mm256_srai_epi32(lo, N), _mm256_srai_epi32(hi, N)};
  }
  template <int N>
  ROOST_INLINE I32 shift_right_logical() const {
    return {_mm256_srli_epi32(lo, N), _mm256_srli_epi32(hi, N)};
  }
  ROOST_INLINE int32_t max_lane() const {
    const __m256i a = _mm256_max_epi32(lo, hi);
    __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1));
    return _mm_cvtsi128_si32(b);
  }
  ROOST_INLINE int32_t sum() const {
    const __m256i a = _mm256_add_epi32(lo, hi);
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1));
    return _mm_cvtsi128_si32(b);
  }
  ROOST_INLINE F32 to_f32() const;
  ROOST_INLINE F32 as_f32() const;
};
ROOST_INLINE I32 operator+(I32 a, I32 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
ROOST_INLINE I32 operator-(I32 a, I32 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
ROOST_INLINE I32 operator&(I32 a, I32 b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
ROOST_INLINE I32 operator|(I32 a, I32 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
ROOST_INLINE I32 operator^(I32 a, I32 b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
ROOST_INLINE I32 max(I32 a, I32 b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
ROOST_INLINE I32 min(I32 a, I32 b) { return {_mm256_min_epi32(a.lo, b.lo), _mm256_min_epi32(a.hi, b.hi)}; }
ROOST_INLINE Mask less(I32 a, I32 b) { return {_mm256_cmpgt_epi32(b.lo, a.lo), _mm256_cmpgt_epi32(b.hi, a.hi)}; }
ROOST_INLINE Mask equal(I32 a, I32 b) { return {_mm256_cmpeq_epi32(a.lo, b.lo), _mm256_cmpeq_epi32(a.hi, b.hi)}; }
ROOST_INLINE I32 select(Mask m, I32 a, I32 b) {
  return {_mm256_blendv_epi8(b.lo, a.lo, m.lo), _mm256_blendv_epi8(b.hi, a.hi, m.hi)};
}

struct F32 {
  static constexpr int kLanes = 16;
  __m256 lo, hi;

  static ROOST_INLINE F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static ROOST_INLINE F32 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static ROOST_INLINE F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static ROOST_INLINE F32 load_partial(const float* p, int64_t n) {
    const Mask m = Mask::first(n);
    return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
  }
  static ROOST_INLINE F32 load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static ROOST_INLINE F32 load_bf16(const uint16_t* p) {
    const __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  }
  static ROOST_INLINE void load_bf16_pairs(const uint16_t* p, F32& even, F32& odd) {
    const I32 pairs = {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                       _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16))};
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    even = {_mm256_castsi256_ps(_mm256_slli_epi32(pairs.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(pairs.hi, 16))};
    odd = {_mm256_castsi256_ps(_mm256_and_si256(pairs.lo, high)),
           _mm256_castsi256_ps(_mm256_and_si256(pairs.hi, high))};
  }
  ROOST_INLINE void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
  ROOST_INLINE void store_partial(float* p, int64_t n) const {
    const Mask m = Mask::first(n);
    _mm256_maskstore_ps(p, m.lo, lo);
    _mm256_maskstore_ps(p + 8, m.hi, hi);
  }
  ROOST_INLINE void store_bf16(uint16_t* p) const {
    const __m256i packed = _mm256_packus_epi32(narrow_bf16(lo), narrow_bf16(hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
  }

  ROOST_INLINE float sum() const {
    const __m256 a = _mm256_add_ps(lo, hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
  }
  ROOST_INLINE float max_lane() const {
    const __m256 a = _mm256_max_ps(lo, hi);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
  }
  ROOST_INLINE I32 to_i32() const { return {_mm256_cvtps_epi32(lo), _mm256_cvtps_epi32(hi)}; }
  ROOST_INLINE I32 as_i32() const { return {_mm256_castps_si256(lo), _mm256_castps_si256(hi)}; }

 private:
  static ROOST_INLINE __m256i narrow_bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  }
};

ROOST_INLINE F32 I32::to_f32() const { return {_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)}; }
ROOST_INLINE F32 I32::as_f32() const { return {_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)}; }
ROOST_INLINE F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
ROOST_INLINE F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
ROOST_INLINE F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
ROOST_INLINE F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
ROOST_INLINE F32 operator-(F32 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
ROOST_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
ROOST_INLINE F32 fnma(F32 a, F32 b, F32 c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
ROOST_INLINE F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
ROOST_INLINE F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
ROOST_INLINE F32 abs(F32 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
ROOST_INLINE F32 sqrt(F32 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
ROOST_INLINE F32 round(F32 a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
}
ROOST_INLINE Mask less(F32 a, F32 b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
ROOST_INLINE Mask equal(F32 a, F32 b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ))};
}
ROOST_INLINE F32 select(Mask m, F32 a, F32 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(m.lo)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(m.hi))};
}

struct Codes {
  __m256i lo, hi;  // lanes 0–7, 8–15
  static ROOST_INLINE Codes load(const uint8_t* p) {
    return {_mm256_load_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  ROOST_INLINE void store(uint8_t* p) const {
    _mm256_store_si256(reinterpret_cast<__m256i*>(p), lo);
    _mm256_store_si256(reinterpret_cast<__m256i*>(p + 32), hi);
  }
  template <int N>
  ROOST_INLINE Codes shift_left() const {
    return {_mm256_slli_epi16(lo, N), _mm256_slli_epi16(hi, N)};
  }
  template <int N>
  ROOST_INLINE Codes shift_right() const {
    return {_mm256_srli_epi16(lo, N), _mm256_srli_epi16(hi, N)};
  }
  ROOST_INLINE Codes keep(uint8_t mask) const {
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(lo, m), _mm256_and_si256(hi, m)};
  }
};
ROOST_INLINE Codes merge(Codes base, Codes bits, uint8_t mask) {
  const Codes kept = bits.keep(mask);
  return {_mm256_or_si256(base.lo, kept.lo), _mm256_or_si256(base.hi, kept.hi)};
}

ROOST_INLINE __m256i broadcast_4(const int8_t* x) {
  int32_t bytes;
  __builtin_memcpy(&bytes, x, sizeof(bytes));
  return _mm256_set1_epi32(bytes);
}

// vpmaddubsw adds two products of an unsigned and a signed byte into 16 bits. With |x| ≤ 127 and
// codes below 2^k, the pair is at most 2 · (2^k − 1) · 127, so 32,767 has room for 8 pairs of 4-bit
// codes, 4 of 5 bits, 2 of 6 bits. Only then are the 16-bit sums widened.
template <int kBits>
struct Dot {
  static constexpr bool kCentred = false;
  static constexpr int kRoom = kBits == 4 ? 8 : kBits == 5 ? 4 : 2;
  __m256i narrow_lo, narrow_hi;
  I32 acc;

  template <int kStep>
  ROOST_INLINE void add(const Codes& codes, const int8_t* x) {
    const __m256i x4 = broadcast_4(x);
    const __m256i lo = _mm256_maddubs_epi16(codes.lo, x4);
    const __m256i hi = _mm256_maddubs_epi16(codes.hi, x4);
    if constexpr (kStep % kRoom != 0) {
      narrow_lo = _mm256_add_epi16(narrow_lo, lo);
      narrow_hi = _mm256_add_epi16(narrow_hi, hi);
    } else {
      if constexpr (kStep != 0) acc = total<kStep>();
      narrow_lo = lo;
      narrow_hi = hi;
    }
    // GCC would sum the steps as a tree, and hold all their products (in memory) until then.
    asm("" : "+x"(narrow_lo), "+x"(narrow_hi));
  }
  // After kSteps steps.
  template <int kSteps>
  ROOST_INLINE I32 total() const {
    const __m256i ones = _mm256_set1_epi16(1);
    const I32 wide = {_mm256_madd_epi16(narrow_lo, ones), _mm256_madd_epi16(narrow_hi, ones)};
    if constexpr (kSteps <= kRoom) {
      return wide;
    } else {
      return acc + wide;
    }
  }
};

// A byte code as a signed byte w = code − 128: |w| · (x with the sign of w) is exact, since x is never
// −128, and a pair is at most 2 · 128 · 127 = 32,512.
template <>
struct Dot<8> {
  static constexpr bool kCentred = true;
  I32 acc = I32::zero();
  template <int kStep>
  ROOST_INLINE void add(const Codes& codes, const int8_t* x) {
    const __m256i x4 = broadcast_4(x);
    const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
    const __m256i lo = _mm256_xor_si256(codes.lo, flip);
    const __m256i hi = _mm256_xor_si256(codes.hi, flip);
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i pairs_lo = _mm256_maddubs_epi16(_mm256_abs_epi8(lo), _mm256_sign_epi8(x4, lo));
    const __m256i pairs_hi = _mm256_maddubs_epi16(_mm256_abs_epi8(hi), _mm256_sign_epi8(x4, hi));
    acc = acc + I32{_mm256_madd_epi16(pairs_lo, ones), _mm256_madd_epi16(pairs_hi, ones)};
    asm("" : "+x"(acc.lo), "+x"(acc.hi));  // as above
  }
  template <int kSteps>
  ROOST_INLINE I32 total() const {
    return acc;
  }
};

struct Words {
  __m256i lo, hi;
  static ROOST_INLINE Words even_of(const Codes& codes) {
    const __m256i low_bytes = _mm256_set1_epi16(0x00ff);
    return {_mm256_and_si256(codes.lo, low_bytes), _mm256_and_si256(codes.hi, low_bytes)};
  }
  static ROOST_INLINE Words odd_of(const Codes& codes) {
    return {_mm256_srli_epi16(codes.lo, 8), _mm256_srli_epi16(codes.hi, 8)};
  }
  static ROOST_INLINE Words load(const uint8_t* p) {
    return {_mm256_load_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  ROOST_INLINE void store(uint8_t* p) const {
    _mm256_store_si256(reinterpret_cast<__m256i*>(p), lo);
    _mm256_store_si256(reinterpret_cast<__m256i*>(p + 32), hi);
  }
  ROOST_INLINE Words minus(int16_t x) const {
    const __m256i all = _mm256_set1_epi16(x);
    return {_mm256_sub_epi16(lo, all), _mm256_sub_epi16(hi, all)};
  }
};

struct WordDot {
  I32 acc = I32::zero();
  ROOST_INLINE void add(const Words& words, const int16_t* x) {
    int32_t pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    const __m256i x2 = _mm256_set1_epi32(pair);
    acc = acc + I32{_mm256_madd_epi16(words.lo, x2), _mm256_madd_epi16(words.hi, x2)};
    asm("" : "+x"(acc.lo), "+x"(acc.hi));  // as above
  }
};

constexpr int kTileRows = 4;
constexpr int64_t kUnpackFromRows = 16;
constexpr int64_t kAheadGroups = 16;
constexpr int kFloatTileRows = 4;
constexpr int kFloatAccumulators = 4;

ROOST_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace roost::ROOST_ISA
