// The AVX-512 intrinsics that roost uses, in plain C++ over bytes, after Intel's descriptions: the
// code of simd/avx512.h can then be judged on a machine that lacks the instructions. Slow, and for
// tests only (CMake option ROOST_EMULATE_AVX512; compiled with the AVX2 flags).
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace roost_emulated {

struct Register {
  alignas(64) unsigned char bytes[64];
};
// Distinct types, as in the real header: a mix of the two does not compile.
struct F : Register {};
struct I : Register {};
using Mask16 = uint16_t;

template <class T>
struct Lanes {
  T v[64 / sizeof(T)];
};
template <class T>
inline Lanes<T> lanes(const Register& r) {
  Lanes<T> out;
  std::memcpy(out.v, r.bytes, 64);
  return out;
}
template <class R, class T>
inline R pack(const Lanes<T>& l) {
  R out;
  std::memcpy(out.bytes, l.v, 64);
  return out;
}

// R of T, a lane at a time: fn(i).
template <class R, class T, class Fn>
inline R build(const Fn& fn) {
  Lanes<T> out;
  for (unsigned i = 0; i < 64 / sizeof(T); ++i) out.v[i] = static_cast<T>(fn(i));
  return pack<R, T>(out);
}
template <class R, class T, class Fn>
inline R map(const R& a, const Fn& fn) {
  const auto x = lanes<T>(a);
  return build<R, T>([&](unsigned i) { return fn(x.v[i]); });
}
template <class R, class T, class Fn>
inline R map(const R& a, const R& b, const Fn& fn) {
  const auto x = lanes<T>(a);
  const auto y = lanes<T>(b);
  return build<R, T>([&](unsigned i) { return fn(x.v[i], y.v[i]); });
}
template <class T, class R, class Fn>
inline Mask16 compare(const R& a, const R& b, const Fn& fn) {
  const auto x = lanes<T>(a);
  const auto y = lanes<T>(b);
  unsigned out = 0;
  for (unsigned i = 0; i < 16; ++i) out |= (fn(x.v[i], y.v[i]) ? 1u : 0u) << i;
  return static_cast<Mask16>(out);
}
template <class To, class From>
inline To recast(const From& a) {
  To out;
  std::memcpy(out.bytes, a.bytes, 64);
  return out;
}

// Loads, stores, constants.
template <class R>
inline R load(const void* p) {
  R out;
  std::memcpy(out.bytes, p, 64);
  return out;
}
inline I load_aligned(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % 64 != 0) __builtin_trap();  // vmovdqa64 would fault
  return load<I>(p);
}
inline void store(void* p, const Register& a) { std::memcpy(p, a.bytes, 64); }
inline void store_aligned(void* p, const Register& a) {
  if (reinterpret_cast<uintptr_t>(p) % 64 != 0) __builtin_trap();
  store(p, a);
}
inline F maskz_loadu_ps(Mask16 m, const float* p) {
  return build<F, float>([&](unsigned i) { return (m >> i) & 1 ? p[i] : 0.0f; });
}
inline void mask_storeu_ps(float* p, Mask16 m, const F& a) {
  const auto x = lanes<float>(a);
  for (unsigned i = 0; i < 16; ++i) {
    if ((m >> i) & 1) p[i] = x.v[i];
  }
}
inline F setzero_ps() {
  return build<F, float>([](unsigned) { return 0.0f; });
}
inline I setzero_si512() {
  return build<I, int32_t>([](unsigned) { return 0; });
}
inline F set1_ps(float x) {
  return build<F, float>([&](unsigned) { return x; });
}
inline I set1_epi32(int x) {
  return build<I, int32_t>([&](unsigned) { return x; });
}
inline I set1_epi8(char x) {
  return build<I, char>([&](unsigned) { return x; });
}

// f32 arithmetic.
inline F add_ps(const F& a, const F& b) {
  return map<F, float>(a, b, [](float x, float y) { return x + y; });
}
inline F sub_ps(const F& a, const F& b) {
  return map<F, float>(a, b, [](float x, float y) { return x - y; });
}
inline F mul_ps(const F& a, const F& b) {
  return map<F, float>(a, b, [](float x, float y) { return x * y; });
}
inline F div_ps(const F& a, const F& b) {
  return map<F, float>(a, b, [](float x, float y) { return x / y; });
}
inline F max_ps(const F& a, const F& b) {
  return map<F, float>(a, b, [](float x, float y) { return x > y ? x : y; });
}
inline F min_ps(const F& a, const F& b) {
  return map<F, float>(a, b, [](float x, float y) { return x < y ? x : y; });
}
inline F sqrt_ps(const F& a) {
  return map<F, float>(a, [](float x) { return std::sqrt(x); });
}
inline F fmadd_ps(const F& a, const F& b, const F& c) {
  const auto z = lanes<float>(c);
  const auto x = lanes<float>(a);
  const auto y = lanes<float>(b);
  return build<F, float>([&](unsigned i) { return std::fma(x.v[i], y.v[i], z.v[i]); });
}
inline F fnmadd_ps(const F& a, const F& b, const F& c) {
  const auto z = lanes<float>(c);
  const auto x = lanes<float>(a);
  const auto y = lanes<float>(b);
  return build<F, float>([&](unsigned i) { return std::fma(-x.v[i], y.v[i], z.v[i]); });
}
inline F roundscale_ps(const F& a, int imm) {
  if (imm != (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)) __builtin_trap();
  return map<F, float>(a, [](float x) { return std::nearbyint(x); });
}

// Bits and integers.
template <class R, class Fn>
inline R bitwise(const R& a, const R& b, const Fn& fn) {
  return map<R, uint32_t>(a, b, fn);
}
inline I and_si512(const I& a, const I& b) {
  return bitwise(a, b, [](uint32_t x, uint32_t y) { return x & y; });
}
inline I or_si512(const I& a, const I& b) {
  return bitwise(a, b, [](uint32_t x, uint32_t y) { return x | y; });
}
inline I xor_si512(const I& a, const I& b) {
  return bitwise(a, b, [](uint32_t x, uint32_t y) { return x ^ y; });
}
inline F xor_ps(const F& a, const F& b) {
  return bitwise(a, b, [](uint32_t x, uint32_t y) { return x ^ y; });
}
inline F andnot_ps(const F& a, const F& b) {
  return bitwise(a, b, [](uint32_t x, uint32_t y) { return ~x & y; });
}
inline I ternarylogic_epi32(const I& a, const I& b, const I& c, int imm) {
  const auto z = lanes<uint32_t>(c);
  const auto x = lanes<uint32_t>(a);
  const auto y = lanes<uint32_t>(b);
  return build<I, uint32_t>([&](unsigned i) {
    uint32_t out = 0;
    for (unsigned bit = 0; bit < 32; ++bit) {
      const uint32_t index = ((x.v[i] >> bit) & 1) << 2 | ((y.v[i] >> bit) & 1) << 1 | ((z.v[i] >> bit) & 1);
      out |= ((static_cast<uint32_t>(imm) >> index) & 1) << bit;
    }
    return out;
  });
}
inline I add_epi32(const I& a, const I& b) {
  return bitwise(a, b, [](uint32_t x, uint32_t y) { return x + y; });
}
inline I sub_epi32(const I& a, const I& b) {
  return bitwise(a, b, [](uint32_t x, uint32_t y) { return x - y; });
}
inline I max_epi32(const I& a, const I& b) {
  return map<I, int32_t>(a, b, [](int32_t x, int32_t y) { return x > y ? x : y; });
}
inline I min_epi32(const I& a, const I& b) {
  return map<I, int32_t>(a, b, [](int32_t x, int32_t y) { return x < y ? x : y; });
}
inline I slli_epi32(const I& a, unsigned n) {
  return map<I, uint32_t>(a, [=](uint32_t x) { return n < 32 ? x << n : 0; });
}
inline I srli_epi32(const I& a, unsigned n) {
  return map<I, uint32_t>(a, [=](uint32_t x) { return n < 32 ? x >> n : 0; });
}
inline I srai_epi32(const I& a, unsigned n) {
  return map<I, int32_t>(a, [=](int32_t x) { return x >> (n < 32 ? n : 31); });
}
inline I slli_epi16(const I& a, unsigned n) {
  return map<I, uint16_t>(a, [=](uint16_t x) { return n < 16 ? x << n : 0; });
}
inline I srli_epi16(const I& a, unsigned n) {
  return map<I, uint16_t>(a, [=](uint16_t x) { return n < 16 ? x >> n : 0; });
}
// Four products of an unsigned byte of `a` and a signed byte of `b`, added to the lane of `source`.
inline I dpbusd_epi32(const I& source, const I& a, const I& b) {
  const auto sum = lanes<int32_t>(source);
  const auto codes = lanes<uint8_t>(a);
  const auto values = lanes<int8_t>(b);
  return build<I, int32_t>([&](unsigned i) {
    int32_t out = sum.v[i];
    for (unsigned k = 0; k < 4; ++k) out += static_cast<int32_t>(codes.v[4 * i + k]) * values.v[4 * i + k];
    return out;
  });
}
// Two products of 16-bit integers, added to the lane of `source`.
inline I dpwssd_epi32(const I& source, const I& a, const I& b) {
  const auto sum = lanes<int32_t>(source);
  const auto x = lanes<int16_t>(a);
  const auto y = lanes<int16_t>(b);
  return build<I, int32_t>(
      [&](unsigned i) { return sum.v[i] + x.v[2 * i] * y.v[2 * i] + x.v[2 * i + 1] * y.v[2 * i + 1]; });
}
inline I sub_epi16(const I& a, const I& b) {
  return map<I, uint16_t>(a, b, [](uint16_t x, uint16_t y) { return x - y; });
}

// Comparisons and choices.
inline Mask16 cmp_ps_mask(const F& a, const F& b, int predicate) {
  return compare<float>(a, b, [=](float x, float y) {
    if (predicate == _CMP_LT_OQ) return x < y;
    if (predicate == _CMP_EQ_OQ) return x == y;
    if (predicate == _CMP_UNORD_Q) return x != x || y != y;
    __builtin_trap();
  });
}
inline Mask16 cmpeq_epi32_mask(const I& a, const I& b) {
  return compare<int32_t>(a, b, [](int32_t x, int32_t y) { return x == y; });
}
inline Mask16 cmpgt_epi32_mask(const I& a, const I& b) {
  return compare<int32_t>(a, b, [](int32_t x, int32_t y) { return x > y; });
}
template <class R>
inline R blend(Mask16 m, const R& a, const R& b) {
  const auto x = lanes<uint32_t>(a);
  const auto y = lanes<uint32_t>(b);
  return build<R, uint32_t>([&](unsigned i) { return (m >> i) & 1 ? y.v[i] : x.v[i]; });
}

// Conversions.
inline I cvtps_epi32(const F& a) {
  const auto x = lanes<float>(a);
  return build<I, int32_t>([&](unsigned i) {
    const float rounded = std::nearbyint(x.v[i]);
    return rounded >= -2147483648.0f && rounded < 2147483648.0f ? static_cast<int32_t>(rounded) : INT32_MIN;
  });
}
inline F cvtepi32_ps(const I& a) {
  const auto x = lanes<int32_t>(a);
  return build<F, float>([&](unsigned i) { return static_cast<float>(x.v[i]); });
}
inline F cvtph_ps(__m256i a) {
  F out;
  _mm256_storeu_ps(reinterpret_cast<float*>(out.bytes), _mm256_cvtph_ps(_mm256_castsi256_si128(a)));
  _mm256_storeu_ps(reinterpret_cast<float*>(out.bytes) + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
  return out;
}
inline I cvtepi8_epi32(__m128i a) {
  int8_t x[16];
  std::memcpy(x, &a, sizeof(x));
  return build<I, int32_t>([&](unsigned i) { return x[i]; });
}
inline I cvtepu16_epi32(__m256i a) {
  uint16_t x[16];
  std::memcpy(x, &a, sizeof(x));
  return build<I, uint32_t>([&](unsigned i) { return x[i]; });
}
inline __m256i cvtepi32_epi16(const I& a) {  // truncates
  const auto x = lanes<uint32_t>(a);
  uint16_t out[16];
  for (unsigned i = 0; i < 16; ++i) out[i] = static_cast<uint16_t>(x.v[i]);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(out));
}
inline __m128i cvtepi32_epi8(const I& a) {  // truncates
  const auto x = lanes<uint32_t>(a);
  uint8_t out[16];
  for (unsigned i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>(x.v[i]);
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(out));
}
inline float cvtss_f32(const F& a) { return lanes<float>(a).v[0]; }
inline __m256 castps512_ps256(const F& a) { return _mm256_loadu_ps(reinterpret_cast<const float*>(a.bytes)); }
inline __m256 extractf32x8_ps(const F& a, int half) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(a.bytes) + 8 * half);
}
inline __m256i castsi512_si256(const I& a) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a.bytes)); }
inline __m256i extracti64x4_epi64(const I& a, int half) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a.bytes) + half);
}

}  // namespace roost_emulated

// From here on the names of the real header mean the functions above.
#define __m512 ::roost_emulated::F
#define __m512i ::roost_emulated::I
#define _mm512_add_epi32 ::roost_emulated::add_epi32
#define _mm512_add_ps ::roost_emulated::add_ps
#define _mm512_and_si512 ::roost_emulated::and_si512
#define _mm512_andnot_ps ::roost_emulated::andnot_ps
#define _mm512_castps512_ps256 ::roost_emulated::castps512_ps256
#define _mm512_castps_si512 ::roost_emulated::recast<::roost_emulated::I, ::roost_emulated::F>
#define _mm512_castsi512_ps ::roost_emulated::recast<::roost_emulated::F, ::roost_emulated::I>
#define _mm512_castsi512_si256 ::roost_emulated::castsi512_si256
#define _mm512_cmp_ps_mask ::roost_emulated::cmp_ps_mask
#define _mm512_cmpeq_epi32_mask ::roost_emulated::cmpeq_epi32_mask
#define _mm512_cmpgt_epi32_mask ::roost_emulated::cmpgt_epi32_mask
#define _mm512_cvtepi8_epi32 ::roost_emulated::cvtepi8_epi32
#define _mm512_cvtepi32_epi16 ::roost_emulated::cvtepi32_epi16
#define _mm512_cvtepi32_epi8 ::roost_emulated::cvtepi32_epi8
#define _mm512_cvtepi32_ps ::roost_emulated::cvtepi32_ps
#define _mm512_cvtepu16_epi32 ::roost_emulated::cvtepu16_epi32
#define _mm512_cvtph_ps ::roost_emulated::cvtph_ps
#define _mm512_cvtps_epi32 ::roost_emulated::cvtps_epi32
#define _mm512_cvtss_f32 ::roost_emulated::cvtss_f32
#define _mm512_div_ps ::roost_emulated::div_ps
#define _mm512_dpbusd_epi32 ::roost_emulated::dpbusd_epi32
#define _mm512_dpwssd_epi32 ::roost_emulated::dpwssd_epi32
#define _mm512_extractf32x8_ps ::roost_emulated::extractf32x8_ps
#define _mm512_extracti64x4_epi64 ::roost_emulated::extracti64x4_epi64
#define _mm512_fmadd_ps ::roost_emulated::fmadd_ps
#define _mm512_fnmadd_ps ::roost_emulated::fnmadd_ps
#define _mm512_load_si512 ::roost_emulated::load_aligned
#define _mm512_loadu_ps ::roost_emulated::load<::roost_emulated::F>
#define _mm512_loadu_si512 ::roost_emulated::load<::roost_emulated::I>
#define _mm512_mask_blend_epi32 ::roost_emulated::blend<::roost_emulated::I>
#define _mm512_mask_blend_ps ::roost_emulated::blend<::roost_emulated::F>
#define _mm512_mask_storeu_ps ::roost_emulated::mask_storeu_ps
#define _mm512_maskz_loadu_ps ::roost_emulated::maskz_loadu_ps
#define _mm512_max_epi32 ::roost_emulated::max_epi32
#define _mm512_max_ps ::roost_emulated::max_ps
#define _mm512_min_epi32 ::roost_emulated::min_epi32
#define _mm512_min_ps ::roost_emulated::min_ps
#define _mm512_mul_ps ::roost_emulated::mul_ps
#define _mm512_or_si512 ::roost_emulated::or_si512
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps ::roost_emulated::roundscale_ps
#define _mm512_set1_epi32 ::roost_emulated::set1_epi32
#define _mm512_set1_epi8 ::roost_emulated::set1_epi8
#define _mm512_set1_ps ::roost_emulated::set1_ps
#define _mm512_setzero_ps ::roost_emulated::setzero_ps
#define _mm512_setzero_si512 ::roost_emulated::setzero_si512
#define _mm512_slli_epi16 ::roost_emulated::slli_epi16
#define _mm512_slli_epi32 ::roost_emulated::slli_epi32
#define _mm512_sqrt_ps ::roost_emulated::sqrt_ps
#define _mm512_srai_epi32 ::roost_emulated::srai_epi32
#define _mm512_srli_epi16 ::roost_emulated::srli_epi16
#define _mm512_srli_epi32 ::roost_emulated::srli_epi32
#define _mm512_store_si512 ::roost_emulated::store_aligned
#define _mm512_storeu_ps ::roost_emulated::store
#define _mm512_storeu_si512 ::roost_emulated::store
#define _mm512_sub_epi16 ::roost_emulated::sub_epi16
#define _mm512_sub_epi32 ::roost_emulated::sub_epi32
#define _mm512_sub_ps ::roost_emulated::sub_ps
#define _mm512_ternarylogic_epi32 ::roost_emulated::ternarylogic_epi32
#define _mm512_xor_ps ::roost_emulated::xor_ps
#define _mm512_xor_si512 ::roost_emulated::xor_si512
