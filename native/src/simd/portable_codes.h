// What the linear kernels of quantised weights ask for besides: the second part of portable.h.
#pragma once

namespace roost::ROOST_ISA {

// 64 bytes: four codes for each lane.
struct Codes {
  uint8_t b[64];
  static ROOST_INLINE Codes load(const uint8_t* p) {
    Codes r;
    std::memcpy(r.b, p, sizeof(r.b));
    return r;
  }
  ROOST_INLINE void store(uint8_t* p) const { std::memcpy(p, b, sizeof(b)); }
  // Bits that cross the border of a byte are not specified: mask them away.
  template <int N>
  ROOST_INLINE Codes shift_left() const {
    Codes r;
    for (int i = 0; i < 64; ++i) r.b[i] = static_cast<uint8_t>(b[i] << N);
    return r;
  }
  template <int N>
  ROOST_INLINE Codes shift_right() const {
    Codes r;
    for (int i = 0; i < 64; ++i) r.b[i] = static_cast<uint8_t>(b[i] >> N);
    return r;
  }
  ROOST_INLINE Codes keep(uint8_t mask) const {
    Codes r;
    for (int i = 0; i < 64; ++i) r.b[i] = b[i] & mask;
    return r;
  }
};
// base | (bits & mask), a byte.
ROOST_INLINE Codes merge(Codes base, Codes bits, uint8_t mask) {
  for (int i = 0; i < 64; ++i) base.b[i] = static_cast<uint8_t>(base.b[i] | (bits.b[i] & mask));
  return base;
}

// Exact sums of code · x over up to 32 inputs, by steps of four inputs from step 0 on; codes have
// kBits bits. Where kCentred, 2^(kBits − 1) is already taken from each code.
template <int kBits>
struct Dot {
  static constexpr bool kCentred = false;
  I32 acc = I32::zero();
  template <int kStep>
  ROOST_INLINE void add(const Codes& codes, const int8_t* x) {
    ROOST_LANES for (int k = 0; k < 4; ++k) acc.v[i] += static_cast<int32_t>(codes.b[4 * i + k]) * x[k];
  }
  template <int kSteps>
  ROOST_INLINE I32 total() const {
    return acc;
  }
};

// Sixteen bits for each code: two inputs a lane, the even or the odd ones of a step.
struct Words {
  int16_t w[32];
  static ROOST_INLINE Words even_of(const Codes& codes) {
    Words r;
    for (int i = 0; i < 32; ++i) r.w[i] = codes.b[2 * i];
    return r;
  }
  static ROOST_INLINE Words odd_of(const Codes& codes) {
    Words r;
    for (int i = 0; i < 32; ++i) r.w[i] = codes.b[2 * i + 1];
    return r;
  }
  static ROOST_INLINE Words load(const uint8_t* p) {
    Words r;
    std::memcpy(r.w, p, sizeof(r.w));
    return r;
  }
  ROOST_INLINE void store(uint8_t* p) const { std::memcpy(p, w, sizeof(w)); }
  ROOST_INLINE Words minus(int16_t x) const {
    Words r;
    for (int i = 0; i < 32; ++i) r.w[i] = static_cast<int16_t>(w[i] - x);
    return r;
  }
};

// Exact sums of word · x, two inputs at a time.
struct WordDot {
  I32 acc = I32::zero();
  ROOST_INLINE void add(const Words& words, const int16_t* x) {
    ROOST_LANES acc.v[i] += words.w[2 * i] * x[0] + words.w[2 * i + 1] * x[1];
  }
};

// How the linear kernels cut their work here: rows of a tile; rows from which a block of weights is
// worth unpacking first (never, here); how many groups of weights ahead of use memory is asked for
// them; rows and blocks of a tile of the float kernel.
constexpr int kTileRows = 1;
constexpr int64_t kUnpackFromRows = INT64_MAX;
constexpr int64_t kAheadGroups = 8;
constexpr int kFloatTileRows = 1;
constexpr int kFloatAccumulators = 1;

}  // namespace roost::ROOST_ISA
