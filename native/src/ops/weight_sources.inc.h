// Where the linear kernels of quantised weights take a block's codes and scales from: the packed matrix,
// or a part of it that has been unpacked for the rows that pass over it.
#include "../layout.h"

namespace roost::ROOST_ISA {
namespace {

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

// fn(Constant<0>{}) … fn(Constant<kCount − 1>{}), unrolled: shifts take their count at compile time.
template <int kCount, class Fn>
ROOST_INLINE void unroll(const Fn& fn) {
  if constexpr (kCount > 0) {
    unroll<kCount - 1>(fn);
    fn(Constant<kCount - 1>{});
  }
}

// The codes of one step from a group's packed bytes.
template <int kBits, int kStep>
ROOST_INLINE Codes codes_of_step(const uint8_t* group) {
  if constexpr (kBits == 8) {
    return Codes::load(group + 64 * kStep);
  } else {
    const Codes pair = Codes::load(group + 64 * (kStep / 2));
    Codes nibbles;
    if constexpr (kStep % 2 == 0) {
      nibbles = pair.keep(0x0f);
    } else {
      nibbles = pair.template shift_right<4>().keep(0x0f);
    }
    if constexpr (kBits == 4) {
      return nibbles;
    } else {
      constexpr int kHighBits = kBits - 4;                      // a code's
      constexpr int kStepsPerByte = 8 / kHighBits;              // of the bytes with high bits
      constexpr int kFrom = kStep % kStepsPerByte * kHighBits;  // where they are
      constexpr uint8_t kMask = kBits == 5 ? 0x10 : 0x30;       // where they belong
      const Codes high = Codes::load(group + 256 + 64 * (kStep / kStepsPerByte));
      if constexpr (kFrom < 4) {
        return merge(nibbles, high.template shift_left<4 - kFrom>(), kMask);
      } else {
        return merge(nibbles, high.template shift_right<kFrom - 4>(), kMask);
      }
    }
  }
}

// Packed weights that are unpacked next. Asked for while the tiles before compute: unpacking alone is
// faster than memory.
struct Ahead {
  const uint8_t* at;
  const uint8_t* end;

  // Two lines, towards the second level.
  ROOST_INLINE void fetch() {
    if (at >= end) return;
    __builtin_prefetch(at, 0, 2);
    __builtin_prefetch(at + 64, 0, 2);
    at += 128;
  }
};

// Where a tile takes its weights from: the packed matrix…
template <class Layout>
struct PackedSource {
  static constexpr int64_t kCodeBytes = Layout::kCodeBytes;
  static constexpr int64_t kScaleBytes = Layout::kScaleBytes;
  // How far ahead of use a group's lines are asked for: some KB, so that one thread keeps enough lines
  // in flight for the memory's latency.
  static constexpr int64_t kAhead = kAheadGroups;

  template <int kStep>
  static ROOST_INLINE Codes codes(const uint8_t* group) {
    return codes_of_step<Layout::kBits, kStep>(group);
  }
  // For fine activations: the even (kOdd = 0) or the odd inputs of the step.
  static constexpr bool kWordsCentred = false;
  template <int kStep, int kOdd>
  static ROOST_INLINE Words words(const uint8_t* group) {
    const Codes both = codes<kStep>(group);
    return kOdd == 0 ? Words::even_of(both) : Words::odd_of(both);
  }
  static ROOST_INLINE F32 scale(const uint8_t* scales, int index) {
    return F32::load_f16(reinterpret_cast<const uint16_t*>(scales) + 16 * index);
  }
  static ROOST_INLINE void fetch(const uint8_t* group, const uint8_t* scales, Ahead*) {
    for (int64_t i = 0; i < kCodeBytes; i += 64) prefetch(group + kAhead * kCodeBytes + i);
    prefetch(scales + kAhead * kScaleBytes);
  }
};

// …or a part of a block, unpacked: a byte a code, f32 scales.
template <class Layout>
struct UnpackedSource {
  static constexpr int64_t kCodeBytes = 512;
  static constexpr int64_t kScaleBytes = 2 * Layout::kScaleBytes;

  template <int kStep>
  static ROOST_INLINE Codes codes(const uint8_t* group) {
    return Codes::load(group + 64 * kStep);
  }
  static ROOST_INLINE F32 scale(const uint8_t* scales, int index) {
    return F32::load(reinterpret_cast<const float*>(scales) + 16 * index);
  }
  static ROOST_INLINE void fetch(const uint8_t*, const uint8_t*, Ahead* ahead) { ahead->fetch(); }
  template <int kStep>
  static ROOST_INLINE void keep(const uint8_t* from, uint8_t* to) {
    codes_of_step<Layout::kBits, kStep>(from).store(to + 64 * kStep);
  }
};

// …or, for fine activations, two bytes a code, with 2^(k−1) already taken from it in the symmetric formats.
template <class Layout>
struct UnpackedWords : UnpackedSource<Layout> {
  static constexpr int64_t kCodeBytes = 1024;
  static constexpr bool kWordsCentred = !Layout::kMinimum;

  template <int kStep, int kOdd>
  static ROOST_INLINE Words words(const uint8_t* group) {
    return Words::load(group + 128 * kStep + 64 * kOdd);
  }
  template <int kStep>
  static ROOST_INLINE void keep(const uint8_t* from, uint8_t* to) {
    constexpr int16_t kCentre = kWordsCentred ? 1 << (Layout::kBits - 1) : 0;
    const Codes both = codes_of_step<Layout::kBits, kStep>(from);
    Words::even_of(both).minus(kCentre).store(to + 128 * kStep);
    Words::odd_of(both).minus(kCentre).store(to + 128 * kStep + 64);
  }
};

}  // namespace
}  // namespace roost::ROOST_ISA
