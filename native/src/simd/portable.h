// Sixteen lanes in plain C++: the meaning that every other instruction set must match to the bit.
//
// All instruction sets have 16 lanes here, also where a register holds fewer, so that a sum over
// lanes has one shape everywhere. Include after defining ROOST_ISA, the namespace of this build.
// No STL: an inline function compiled for one instruction set may be the copy that the linker keeps.
#pragma once

#include <cstdint>
#include <cstring>

#define ROOST_INLINE inline __attribute__((always_inline))

namespace roost::ROOST_ISA {

constexpr int kLanes = 16;

ROOST_INLINE float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  uint32_t out;
  if (exponent == 0x1fu) {
    // A signalling NaN becomes a quiet one, as in hardware.
    out = sign | 0x7f800000u | (fraction << 13) | (fraction != 0 ? 0x400000u : 0u);
  } else if (exponent != 0) {
    out = sign | ((exponent + 112u) << 23) | (fraction << 13);
  } else {
    // A subnormal half is fraction · 2^-24, exact in f32.
    const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-08f;
    std::memcpy(&out, &magnitude, sizeof(out));
    out |= sign;
  }
  float value;
  std::memcpy(&value, &out, sizeof(value));
  return value;
}

ROOST_INLINE float bf16_to_f32(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Round to nearest even; a NaN stays a NaN.
ROOST_INLINE uint16_t f32_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Round to nearest even by the addition of 1.5 · 2^23: exact for |x| < 2^22; the caller keeps to it
// where it must hold, and F32::round handles the rest.
ROOST_INLINE float round_even(float x) {
  if (!(__builtin_fabsf(x) < 4194304.0f)) return x;  // an integer already up to halves, or not finite
  const float magic = 12582912.0f;
  volatile float shifted = x + magic;
  return __builtin_copysignf(shifted - magic, x);
}

struct Mask {
  uint32_t m;
  static ROOST_INLINE Mask first(int64_t n) { return {n >= kLanes ? 0xffffu : (1u << n) - 1u}; }
  ROOST_INLINE uint32_t bits() const { return m; }
  ROOST_INLINE bool any() const { return m != 0; }
};
ROOST_INLINE Mask operator&(Mask a, Mask b) { return {a.m & b.m}; }
ROOST_INLINE Mask operator|(Mask a, Mask b) { return {a.m | b.m}; }

#define ROOST_LANES for (int i = 0; i < kLanes; ++i)

struct F32;

struct I32 {
  int32_t v[16];

  static ROOST_INLINE I32 zero() { return splat(0); }
  static ROOST_INLINE I32 splat(int32_t x) {
    I32 r;
    ROOST_LANES r.v[i] = x;
    return r;
  }
  static ROOST_INLINE I32 load(const int32_t* p) {
    I32 r;
    std::memcpy(r.v, p, sizeof(r.v));
    return r;
  }
  static ROOST_INLINE I32 load_i8(const int8_t* p) {
    I32 r;
    ROOST_LANES r.v[i] = p[i];
    return r;
  }
  ROOST_INLINE void store(int32_t* p) const { std::memcpy(p, v, sizeof(v)); }
  // The low byte of each lane: the lanes hold −128 … 127.
  ROOST_INLINE void store_i8(int8_t* p) const { ROOST_LANES p[i] = static_cast<int8_t>(v[i]); }
  // As 16 bits, of each four lanes the even ones before the odd: the lanes hold −32768 … 32767.
  ROOST_INLINE void store_i16_even_odd(int16_t* p) const {
    ROOST_LANES p[i / 4 * 4 + i % 2 * 2 + i % 4 / 2] = static_cast<int16_t>(v[i]);
  }
  // As two's complement, without undefined overflow.
  template <int N>
  ROOST_INLINE I32 shift_left() const {
    I32 r;
    ROOST_LANES r.v[i] = static_cast<int32_t>(static_cast<uint32_t>(v[i]) << N);
    return r;
  }
  template <int N>
  ROOST_INLINE I32 shift_right() const {  // arithmetic
    I32 r;
    ROOST_LANES r.v[i] = v[i] >> N;
    return r;
  }
  template <int N>
  ROOST_INLINE I32 shift_right_logical() const {
    I32 r;
    ROOST_LANES r.v[i] = static_cast<int32_t>(static_cast<uint32_t>(v[i]) >> N);
    return r;
  }
  ROOST_INLINE int32_t max_lane() const {
    int32_t best = v[0];
    ROOST_LANES best = v[i] > best ? v[i] : best;
    return best;
  }
  ROOST_INLINE int32_t sum() const {
    uint32_t total = 0;
    ROOST_LANES total += static_cast<uint32_t>(v[i]);
    return static_cast<int32_t>(total);
  }
  ROOST_INLINE F32 to_f32() const;  // by value, nearest even
  ROOST_INLINE F32 as_f32() const;  // the same bits
};
ROOST_INLINE I32 operator+(I32 a, I32 b) {
  ROOST_LANES a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i]));
  return a;
}
ROOST_INLINE I32 operator-(I32 a, I32 b) {
  ROOST_LANES a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) - static_cast<uint32_t>(b.v[i]));
  return a;
}
ROOST_INLINE I32 operator&(I32 a, I32 b) {
  ROOST_LANES a.v[i] &= b.v[i];
  return a;
}
ROOST_INLINE I32 operator|(I32 a, I32 b) {
  ROOST_LANES a.v[i] |= b.v[i];
  return a;
}
ROOST_INLINE I32 operator^(I32 a, I32 b) {
  ROOST_LANES a.v[i] ^= b.v[i];
  return a;
}
ROOST_INLINE I32 max(I32 a, I32 b) {
  ROOST_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
ROOST_INLINE I32 min(I32 a, I32 b) {
  ROOST_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
ROOST_INLINE Mask less(I32 a, I32 b) {
  uint32_t m = 0;
  ROOST_LANES m |= (a.v[i] < b.v[i] ? 1u : 0u) << i;
  return {m};
}
ROOST_INLINE Mask equal(I32 a, I32 b) {
  uint32_t m = 0;
  ROOST_LANES m |= (a.v[i] == b.v[i] ? 1u : 0u) << i;
  return {m};
}
ROOST_INLINE I32 select(Mask m, I32 a, I32 b) {
  ROOST_LANES a.v[i] = (m.m >> i) & 1u ? a.v[i] : b.v[i];
  return a;
}

struct F32 {
  static constexpr int kLanes = 16;
  float v[16];

  static ROOST_INLINE F32 zero() { return splat(0.0f); }
  static ROOST_INLINE F32 splat(float x) {
    F32 r;
    ROOST_LANES r.v[i] = x;
    return r;
  }
  static ROOST_INLINE F32 load(const float* p) {
    F32 r;
    std::memcpy(r.v, p, sizeof(r.v));
    return r;
  }
  // The first n lanes (0..16); the others are zero, and their memory is not touched.
  static ROOST_INLINE F32 load_partial(const float* p, int64_t n) {
    F32 r;
    ROOST_LANES r.v[i] = i < n ? p[i] : 0.0f;
    return r;
  }
  static ROOST_INLINE F32 load_f16(const uint16_t* p) {
    F32 r;
    ROOST_LANES r.v[i] = f16_to_f32(p[i]);
    return r;
  }
  static ROOST_INLINE F32 load_bf16(const uint16_t* p) {
    F32 r;
    ROOST_LANES r.v[i] = bf16_to_f32(p[i]);
    return r;
  }
  // p[2 · lane] and p[2 · lane + 1].
  static ROOST_INLINE void load_bf16_pairs(const uint16_t* p, F32& even, F32& odd) {
    ROOST_LANES even.v[i] = bf16_to_f32(p[2 * i]);
    ROOST_LANES odd.v[i] = bf16_to_f32(p[2 * i + 1]);
  }
  ROOST_INLINE void store(float* p) const { std::memcpy(p, v, sizeof(v)); }
  ROOST_INLINE void store_partial(float* p, int64_t n) const { ROOST_LANES if (i < n) p[i] = v[i]; }
  ROOST_INLINE void store_bf16(uint16_t* p) const { ROOST_LANES p[i] = f32_to_bf16(v[i]); }

  // Halves are folded onto each other: lane i + lane i + 8, then + 4, + 2, + 1.
  ROOST_INLINE float sum() const {
    float t[8];
    for (int i = 0; i < 8; ++i) t[i] = v[i] + v[i + 8];
    for (int i = 0; i < 4; ++i) t[i] = t[i] + t[i + 4];
    for (int i = 0; i < 2; ++i) t[i] = t[i] + t[i + 2];
    return t[0] + t[1];
  }
  // The largest lane; what it gives if a lane is NaN is not specified.
  ROOST_INLINE float max_lane() const {
    float best = v[0];
    ROOST_LANES best = v[i] > best ? v[i] : best;
    return best;
  }
  ROOST_INLINE I32 to_i32() const {  // nearest even; INT32_MIN where it does not fit
    I32 r;
    ROOST_LANES {
      const bool fits = v[i] >= -2147483648.0f && v[i] < 2147483648.0f;
      r.v[i] = fits ? static_cast<int32_t>(round_even(v[i])) : INT32_MIN;
    }
    return r;
  }
  ROOST_INLINE I32 as_i32() const {
    I32 r;
    std::memcpy(r.v, v, sizeof(v));
    return r;
  }
};

ROOST_INLINE F32 I32::to_f32() const {
  F32 r;
  ROOST_LANES r.v[i] = static_cast<float>(v[i]);
  return r;
}
ROOST_INLINE F32 I32::as_f32() const {
  F32 r;
  std::memcpy(r.v, v, sizeof(v));
  return r;
}
ROOST_INLINE F32 operator+(F32 a, F32 b) {
  ROOST_LANES a.v[i] = a.v[i] + b.v[i];
  return a;
}
ROOST_INLINE F32 operator-(F32 a, F32 b) {
  ROOST_LANES a.v[i] = a.v[i] - b.v[i];
  return a;
}
ROOST_INLINE F32 operator*(F32 a, F32 b) {
  ROOST_LANES a.v[i] = a.v[i] * b.v[i];
  return a;
}
ROOST_INLINE F32 operator/(F32 a, F32 b) {
  ROOST_LANES a.v[i] = a.v[i] / b.v[i];
  return a;
}
ROOST_INLINE F32 operator-(F32 a) {
  ROOST_LANES a.v[i] = -a.v[i];
  return a;
}
ROOST_INLINE F32 fma(F32 a, F32 b, F32 c) {  // a · b + c, one rounding
  ROOST_LANES a.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return a;
}
ROOST_INLINE F32 fnma(F32 a, F32 b, F32 c) {  // c − a · b, one rounding
  ROOST_LANES a.v[i] = __builtin_fmaf(-a.v[i], b.v[i], c.v[i]);
  return a;
}
// Where either is NaN, b: as in hardware.
ROOST_INLINE F32 max(F32 a, F32 b) {
  ROOST_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
ROOST_INLINE F32 min(F32 a, F32 b) {
  ROOST_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
ROOST_INLINE F32 abs(F32 a) {
  ROOST_LANES a.v[i] = __builtin_fabsf(a.v[i]);
  return a;
}
ROOST_INLINE F32 sqrt(F32 a) {
  ROOST_LANES a.v[i] = __builtin_sqrtf(a.v[i]);
  return a;
}
ROOST_INLINE F32 round(F32 a) {  // nearest even
  ROOST_LANES a.v[i] = round_even(a.v[i]);
  return a;
}
ROOST_INLINE Mask less(F32 a, F32 b) {  // false where either is NaN
  uint32_t m = 0;
  ROOST_LANES m |= (a.v[i] < b.v[i] ? 1u : 0u) << i;
  return {m};
}
ROOST_INLINE Mask equal(F32 a, F32 b) {
  uint32_t m = 0;
  ROOST_LANES m |= (a.v[i] == b.v[i] ? 1u : 0u) << i;
  return {m};
}
ROOST_INLINE F32 select(Mask m, F32 a, F32 b) {  // m ? a : b
  ROOST_LANES a.v[i] = (m.m >> i) & 1u ? a.v[i] : b.v[i];
  return a;
}

ROOST_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

}  // namespace roost::ROOST_ISA

#include "portable_codes.h"

#undef ROOST_LANES
