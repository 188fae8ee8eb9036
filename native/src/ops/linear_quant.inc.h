// y[t, n] = scale · Σ_g w_scale[n, g] · x_scale[t, g] · Σ_k code[n, k] · q[t, k]  (− minimums)
//
// For each group, and each term of the activations in it, in this order, in every instruction set and
// for every number of rows:
//   isum = Σ code · q, exact (symmetric formats: of code − 2^(k−1))
//   acc  = fma(float(isum), w_scale · x_scale, acc)
//   acc  = acc − w_minimum · scaled_sum, fused, where there are minimums
// then y = acc · scale (+ bias) (+ y). Lanes are matrix rows, so nothing is summed over lanes.
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

// Where a tile takes its weights from: the packed matrix…
template <class Layout>
struct PackedSource {
  static constexpr int64_t kCodeBytes = Layout::kCodeBytes;
  static constexpr int64_t kScaleBytes = Layout::kScaleBytes;
  // How far ahead of use a group's lines are asked for: about 2 KB, so that one thread keeps enough
  // lines in flight for the memory's latency.
  static constexpr int64_t kAhead = 8;

  template <int kStep>
  static ROOST_INLINE Codes codes(const uint8_t* group) {
    return codes_of_step<Layout::kBits, kStep>(group);
  }
  static ROOST_INLINE F32 scale(const uint8_t* scales, int index) {
    return F32::load_f16(reinterpret_cast<const uint16_t*>(scales) + 16 * index);
  }
  static ROOST_INLINE void fetch(const uint8_t* group, const uint8_t* scales) {
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
  static ROOST_INLINE void fetch(const uint8_t*, const uint8_t*) {}
};

struct Weights {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t num_groups;
};

// acc[r] += num_groups groups of weights × the rows x + r · row_groups, of kTerms terms a group.
template <class Layout, class Source, int kRows, int kTerms>
ROOST_INLINE void fold_groups(const Weights& w, const QuantGroup* x, int64_t row_groups, F32 (&acc)[kRows]) {
  constexpr int kFolds = Layout::kHalves ? 2 : 1;
  constexpr int kSteps = 8 / kFolds;
  using DotK = Dot<Layout::kBits>;
  const uint8_t* codes = w.codes;
  const uint8_t* scales = w.scales;
  for (int64_t g = 0; g < w.num_groups; ++g, x += kTerms, codes += Source::kCodeBytes, scales += Source::kScaleBytes) {
    Source::fetch(codes, scales);
    unroll<kFolds>([&](auto fold) __attribute__((always_inline)) {
      DotK dot[kRows * kTerms];
      unroll<kSteps>([&](auto step) __attribute__((always_inline)) {
        constexpr int kStep = decltype(fold)::value * kSteps + decltype(step)::value;
        const Codes c = Source::template codes<kStep>(codes);
        unroll<kRows * kTerms>([&](auto part) __attribute__((always_inline)) {
          constexpr int p = decltype(part)::value;
          const QuantGroup& xp = x[p / kTerms * row_groups + p % kTerms];
          dot[p].template add<decltype(step)::value>(c, xp.q + 4 * kStep);
        });
      });
      const F32 w_scale = Source::scale(scales, decltype(fold)::value);
      unroll<kRows * kTerms>([&](auto part) __attribute__((always_inline)) {
        constexpr int p = decltype(part)::value;
        const QuantGroup& xp = x[p / kTerms * row_groups + p % kTerms];
        F32& sum_of_row = acc[p / kTerms];
        I32 isum = dot[p].template total<kSteps>();
        if constexpr (!Layout::kMinimum && !DotK::kCentred) {
          I32 sum = I32::splat(xp.sum);
          if constexpr (Layout::kHalves) {
            const I32 first = I32::splat(xp.first_sum);
            sum = decltype(fold)::value == 0 ? first : sum - first;
          }
          isum = isum - sum.template shift_left<Layout::kBits - 1>();
        }
        sum_of_row = fma(isum.to_f32(), w_scale * F32::splat(xp.scale), sum_of_row);
      });
      if constexpr (Layout::kMinimum) {
        const F32 w_minimum = Source::scale(scales, 1);
        unroll<kRows * kTerms>([&](auto part) __attribute__((always_inline)) {
          constexpr int p = decltype(part)::value;
          const QuantGroup& xp = x[p / kTerms * row_groups + p % kTerms];
          acc[p / kTerms] = fnma(w_minimum, F32::splat(xp.scaled_sum), acc[p / kTerms]);
        });
      }
    });
  }
}

// Where a block's results go.
struct Output {
  float* y;  // first row, first of the block's columns
  int64_t y_stride;
  int64_t num_lanes;  // < 16 in the last block
  const float* bias;  // of the block, or null
  bool accumulate;
  float scale;
};

ROOST_INLINE Output block_output(const PackedMatrix& w, float* y, int64_t y_stride, int64_t block,
                                 const Epilogue& epilogue) {
  const int64_t row = block * kBlockRows;
  const int64_t num_lanes = w.rows - row < kBlockRows ? w.rows - row : kBlockRows;
  const float* bias = epilogue.bias == nullptr ? nullptr : epilogue.bias + row;
  return {y + row, y_stride, num_lanes, bias, epilogue.accumulate, w.scale};
}

ROOST_INLINE void finish(const Output& out, int64_t row, F32 acc) {
  float* y = out.y + row * out.y_stride;
  F32 result = acc * F32::splat(out.scale);
  if (out.num_lanes == kBlockRows) {
    if (out.bias != nullptr) result = result + F32::load(out.bias);
    if (out.accumulate) result = F32::load(y) + result;
    result.store(y);
  } else {
    if (out.bias != nullptr) result = result + F32::load_partial(out.bias, out.num_lanes);
    if (out.accumulate) result = F32::load_partial(y, out.num_lanes) + result;
    result.store_partial(y, out.num_lanes);
  }
}

// Sums of a block that has been computed over a part of its groups only.
struct Partial {
  float* sums;  // [rows, 16], or null if the part is the whole
  bool is_first;
  bool is_last;
};

template <class Layout, class Source, int kTerms, int kRows>
__attribute__((noinline)) void tile(const Weights& w, const QuantGroup* x, int64_t row_groups, int64_t row,
                                    const Partial& partial, const Output& out) {
  F32 acc[kRows];
  for (int r = 0; r < kRows; ++r) {
    acc[r] = partial.is_first ? F32::zero() : F32::load(partial.sums + (row + r) * kBlockRows);
  }
  fold_groups<Layout, Source, kRows, kTerms>(w, x + row * row_groups, row_groups, acc);
  for (int r = 0; r < kRows; ++r) {
    if (partial.is_last) {
      finish(out, row + r, acc[r]);
    } else {
      acc[r].store(partial.sums + (row + r) * kBlockRows);
    }
  }
}

// The largest tile that the rows left still fill, then smaller ones: 8, 4, 3, 2, 1. A row of two
// terms takes the registers of two rows.
template <class Layout, class Source, int kTerms, int kRows = (kTileRows > kTerms ? kTileRows / kTerms : 1)>
ROOST_INLINE void all_rows(const Weights& w, const QuantGroup* x, int64_t row_groups, int64_t row, int64_t num_rows,
                           const Partial& partial, const Output& out) {
  for (; row + kRows <= num_rows; row += kRows) {
    tile<Layout, Source, kTerms, kRows>(w, x, row_groups, row, partial, out);
  }
  if constexpr (kRows > 1) {
    constexpr int kFewer = kRows > 4 ? kRows / 2 : kRows - 1;
    if (row < num_rows) all_rows<Layout, Source, kTerms, kFewer>(w, x, row_groups, row, num_rows, partial, out);
  }
}

// Rows of activations that pass over one block together: their quantised values stay in the second
// level cache while the blocks go by.
constexpr int64_t kChunkRows = 128;
// Groups that are unpacked together: 32 × 640 bytes and a tile's activations fit the first level.
constexpr int64_t kPartGroups = 32;

template <class Layout>
__attribute__((noinline)) void unpack(const Weights& w, uint8_t* codes, uint8_t* scales) {
  for (int64_t g = 0; g < w.num_groups; ++g) {
    const uint8_t* from = w.codes + g * Layout::kCodeBytes;
    const uint8_t* from_scales = w.scales + g * Layout::kScaleBytes;
    PackedSource<Layout>::fetch(from, from_scales);
    unroll<8>([&](auto step) __attribute__((always_inline)) {
      constexpr int kStep = decltype(step)::value;
      codes_of_step<Layout::kBits, kStep>(from).store(codes + 512 * g + 64 * kStep);
    });
    for (int i = 0; i < Layout::kScaleBytes / 32; ++i) {
      float* to = reinterpret_cast<float*>(scales + 2 * Layout::kScaleBytes * g) + 16 * i;
      PackedSource<Layout>::scale(from_scales, i).store(to);
    }
  }
}

template <class Layout, int kTerms>
void unpacked_block(const Weights& w, const QuantGroup* x, int64_t num_rows, const Output& out) {
  alignas(64) uint8_t codes[kPartGroups * 512];
  alignas(64) uint8_t scales[kPartGroups * 2 * Layout::kScaleBytes];
  alignas(64) float sums[kChunkRows * kBlockRows];
  const int64_t num_parts = (w.num_groups + kPartGroups - 1) / kPartGroups;
  const int64_t part_groups = (w.num_groups + num_parts - 1) / num_parts;
  for (int64_t g = 0; g < w.num_groups; g += part_groups) {
    const int64_t count = w.num_groups - g < part_groups ? w.num_groups - g : part_groups;
    unpack<Layout>({w.codes + g * Layout::kCodeBytes, w.scales + g * Layout::kScaleBytes, count}, codes, scales);
    const Partial partial = {sums, g == 0, g + count == w.num_groups};
    all_rows<Layout, UnpackedSource<Layout>, kTerms>({codes, scales, count}, x + g * kTerms, w.num_groups * kTerms, 0,
                                                     num_rows, partial, out);
  }
}

template <WeightFormat kFormat, int kTerms>
void linear_quant_of(const PackedMatrix& w, const QuantRows& x, int64_t num_rows, float* y, int64_t y_stride,
                     int64_t block_begin, int64_t block_end, const Epilogue& epilogue) {
  using Layout = LayoutOf<kFormat>;
  const int64_t num_groups = w.cols / kGroup;
  const int64_t block_nbytes = QuantBlock<Layout>::nbytes(num_groups);
  for (int64_t row = 0; row < num_rows; row += kChunkRows) {
    const int64_t chunk_rows = num_rows - row < kChunkRows ? num_rows - row : kChunkRows;
    const QuantGroup* chunk = x.groups + row * num_groups * kTerms;
    for (int64_t block = block_begin; block < block_end; ++block) {
      const uint8_t* codes = w.data + block * block_nbytes;
      const Weights weights = {codes, codes + num_groups * Layout::kCodeBytes, num_groups};
      const Output out = block_output(w, y + row * y_stride, y_stride, block, epilogue);
      if constexpr (Layout::kBits < 8) {
        if (chunk_rows * kTerms >= kUnpackFromRows) {
          unpacked_block<Layout, kTerms>(weights, chunk, chunk_rows, out);
          continue;
        }
      }
      all_rows<Layout, PackedSource<Layout>, kTerms>(weights, chunk, num_groups * kTerms, 0, chunk_rows,
                                                     {nullptr, true, true}, out);
    }
  }
}

template <int kTerms>
void linear_quant_terms(const PackedMatrix& w, const QuantRows& x, int64_t num_rows, float* y, int64_t y_stride,
                        int64_t block_begin, int64_t block_end, const Epilogue& epilogue) {
  const auto run = [&](auto kernel) { kernel(w, x, num_rows, y, y_stride, block_begin, block_end, epilogue); };
  switch (w.format) {
    case WeightFormat::kU4M:
      return run(linear_quant_of<WeightFormat::kU4M, kTerms>);
    case WeightFormat::kU4:
      return run(linear_quant_of<WeightFormat::kU4, kTerms>);
    case WeightFormat::kU5M:
      return run(linear_quant_of<WeightFormat::kU5M, kTerms>);
    case WeightFormat::kU5:
      return run(linear_quant_of<WeightFormat::kU5, kTerms>);
    case WeightFormat::kU6G16:
      return run(linear_quant_of<WeightFormat::kU6G16, kTerms>);
    case WeightFormat::kU8:
      return run(linear_quant_of<WeightFormat::kU8, kTerms>);
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      break;
  }
  __builtin_trap();  // a float matrix: the caller chose the wrong kernel
}

void linear_quant(const PackedMatrix& w, const QuantRows& x, int64_t num_rows, float* y, int64_t y_stride,
                  int64_t block_begin, int64_t block_end, const Epilogue& epilogue) {
  const auto run = x.num_terms == 1 ? linear_quant_terms<1> : linear_quant_terms<2>;
  run(w, x, num_rows, y, y_stride, block_begin, block_end, epilogue);
}

}  // namespace
}  // namespace roost::ROOST_ISA
