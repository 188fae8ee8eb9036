// y[t, n] = scale · Σ_g w_scale[n, g] · x_scale[t, g] · Σ_k code[n, k] · q[t, k]  (− minimums)
//
// For each group, in this order, in every instruction set and for every number of rows:
//   isum = Σ code · q, exact (symmetric formats: of code − 2^(k−1))
//   acc  = fma(float(isum), w_scale · x_scale, acc)
//   acc  = acc − w_minimum · scaled_sum, fused, where there are minimums
// then y = acc · scale (+ bias) (+ y). Lanes are matrix rows, so nothing is summed over lanes.
//
// Fine activations (q of two bytes) take the same steps: 32 · 255 · 32,767 has room in 32 bits.
#include "weight_sources.inc.h"

namespace roost::ROOST_ISA {
namespace {

// Activations of one byte (one term), or fine ones (two).
template <int kTerms>
struct Activations {
  using Group = QuantGroup;
  template <class Layout>
  using Unpacked = UnpackedSource<Layout>;
};
template <>
struct Activations<2> {
  using Group = FineGroup;
  template <class Layout>
  using Unpacked = UnpackedWords<Layout>;
};

// The integer sums of some rows over the steps of a fold, from step kFirst on: total(r), and whether
// the codes' centre is already taken from them.
template <class Layout, class Source, class Group, int kRows>
struct Sums {
  using DotK = Dot<Layout::kBits>;
  static constexpr bool kCentred = DotK::kCentred;
  DotK dot[kRows];

  template <int kFirst, int kSteps>
  ROOST_INLINE void add(const uint8_t* codes, const Group* x, int64_t num_groups) {
    unroll<kSteps>([&](auto step) __attribute__((always_inline)) {
      constexpr int kStep = kFirst + decltype(step)::value;
      const Codes c = Source::template codes<kStep>(codes);
      unroll<kRows>([&](auto row) __attribute__((always_inline)) {
        constexpr int r = decltype(row)::value;
        dot[r].template add<decltype(step)::value>(c, x[r * num_groups].q + 4 * kStep);
      });
    });
  }
  template <int kSteps>
  ROOST_INLINE I32 total(int r) const {
    return dot[r].template total<kSteps>();
  }
};
template <class Layout, class Source, int kRows>
struct Sums<Layout, Source, FineGroup, kRows> {
  static constexpr bool kCentred = Source::kWordsCentred;
  WordDot dot[kRows];

  template <int kFirst, int kSteps>
  ROOST_INLINE void add(const uint8_t* codes, const FineGroup* x, int64_t num_groups) {
    unroll<2 * kSteps>([&](auto half) __attribute__((always_inline)) {
      constexpr int kStep = kFirst + decltype(half)::value / 2;
      constexpr int kOdd = decltype(half)::value % 2;
      const Words w = Source::template words<kStep, kOdd>(codes);
      unroll<kRows>([&](auto row) __attribute__((always_inline)) {
        constexpr int r = decltype(row)::value;
        dot[r].add(w, x[r * num_groups].q + 4 * kStep + 2 * kOdd);
      });
    });
  }
  template <int kSteps>
  ROOST_INLINE I32 total(int r) const {
    return dot[r].acc;
  }
};

struct Weights {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t num_groups;
  Ahead* ahead = nullptr;  // of unpacked ones
};

// acc[r] += w.num_groups groups of weights × the rows x + r · row_groups.
template <class Layout, class Source, class Group, int kRows>
ROOST_INLINE void fold_groups(const Weights& w, const Group* x, int64_t row_groups, F32 (&acc)[kRows]) {
  constexpr int kFolds = Layout::kHalves ? 2 : 1;
  constexpr int kSteps = 8 / kFolds;
  using SumsOfFold = Sums<Layout, Source, Group, kRows>;
  const uint8_t* codes = w.codes;
  const uint8_t* scales = w.scales;
  for (int64_t g = 0; g < w.num_groups; ++g, ++x, codes += Source::kCodeBytes, scales += Source::kScaleBytes) {
    Source::fetch(codes, scales, w.ahead);
    unroll<kFolds>([&](auto fold) __attribute__((always_inline)) {
      SumsOfFold sums;
      sums.template add<decltype(fold)::value * kSteps, kSteps>(codes, x, row_groups);
      const F32 w_scale = Source::scale(scales, decltype(fold)::value);
      unroll<kRows>([&](auto row) __attribute__((always_inline)) {
        constexpr int r = decltype(row)::value;
        const Group& xr = x[r * row_groups];
        I32 isum = sums.template total<kSteps>(r);
        if constexpr (!Layout::kMinimum && !SumsOfFold::kCentred) {
          I32 sum = I32::splat(xr.sum);
          if constexpr (Layout::kHalves) {
            const I32 first = I32::splat(xr.first_sum);
            sum = decltype(fold)::value == 0 ? first : sum - first;
          }
          isum = isum - sum.template shift_left<Layout::kBits - 1>();
        }
        acc[r] = fma(isum.to_f32(), w_scale * F32::splat(xr.scale), acc[r]);
      });
      if constexpr (Layout::kMinimum) {
        const F32 w_minimum = Source::scale(scales, 1);
        unroll<kRows>([&](auto row) __attribute__((always_inline)) {
          constexpr int r = decltype(row)::value;
          acc[r] = fnma(w_minimum, F32::splat(x[r * row_groups].scaled_sum), acc[r]);
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

template <class Layout, class Source, class Group, int kRows>
__attribute__((noinline)) void tile(const Weights& w, const Group* x, int64_t row_groups, int64_t row,
                                    const Partial& partial, const Output& out) {
  F32 acc[kRows];
  for (int r = 0; r < kRows; ++r) {
    acc[r] = partial.is_first ? F32::zero() : F32::load(partial.sums + (row + r) * kBlockRows);
  }
  fold_groups<Layout, Source, Group, kRows>(w, x + row * row_groups, row_groups, acc);
  for (int r = 0; r < kRows; ++r) {
    if (partial.is_last) {
      finish(out, row + r, acc[r]);
    } else {
      acc[r].store(partial.sums + (row + r) * kBlockRows);
    }
  }
}

// The largest tile that the rows left still fill, then smaller ones: 8, 4, 3, 2, 1.
template <class Layout, class Source, class Group, int kRows = kTileRows>
ROOST_INLINE void all_rows(const Weights& w, const Group* x, int64_t row_groups, int64_t row, int64_t num_rows,
                           const Partial& partial, const Output& out) {
  for (; row + kRows <= num_rows; row += kRows) {
    tile<Layout, Source, Group, kRows>(w, x, row_groups, row, partial, out);
  }
  if constexpr (kRows > 1) {
    constexpr int kFewer = kRows > 4 ? kRows / 2 : kRows - 1;
    if (row < num_rows) all_rows<Layout, Source, Group, kFewer>(w, x, row_groups, row, num_rows, partial, out);
  }
}

// Rows of activations that pass over one block together: their quantised values stay in the second
// level cache while the blocks go by.
constexpr int64_t kChunkRows = 128;
// Codes that are unpacked together: they, their scales and a tile's activations fit the first level.
constexpr int64_t kPartBytes = 16384;

template <class Layout, class Source>
__attribute__((noinline)) void unpack(const Weights& w, uint8_t* codes, uint8_t* scales) {
  for (int64_t g = 0; g < w.num_groups; ++g) {
    const uint8_t* from = w.codes + g * Layout::kCodeBytes;
    const uint8_t* from_scales = w.scales + g * Layout::kScaleBytes;
    PackedSource<Layout>::fetch(from, from_scales, nullptr);
    unroll<8>([&](auto step) __attribute__((always_inline)) {
      Source::template keep<decltype(step)::value>(from, codes + Source::kCodeBytes * g);
    });
    for (int i = 0; i < Layout::kScaleBytes / 32; ++i) {
      float* to = reinterpret_cast<float*>(scales + 2 * Layout::kScaleBytes * g) + 16 * i;
      PackedSource<Layout>::scale(from_scales, i).store(to);
    }
  }
}

template <class Layout, class Source, class Group>
void unpacked_block(const Weights& w, const Group* x, int64_t num_rows, const Output& out) {
  constexpr int64_t kMaxGroups = kPartBytes / Source::kCodeBytes;
  alignas(64) uint8_t codes[kPartBytes];
  alignas(64) uint8_t scales[kMaxGroups * 2 * Layout::kScaleBytes];
  alignas(64) float sums[kChunkRows * kBlockRows];
  const int64_t num_parts = (w.num_groups + kMaxGroups - 1) / kMaxGroups;
  const int64_t part_groups = (w.num_groups + num_parts - 1) / num_parts;
  for (int64_t g = 0; g < w.num_groups; g += part_groups) {
    const int64_t count = w.num_groups - g < part_groups ? w.num_groups - g : part_groups;
    unpack<Layout, Source>({w.codes + g * Layout::kCodeBytes, w.scales + g * Layout::kScaleBytes, count}, codes,
                           scales);
    const Partial partial = {sums, g == 0, g + count == w.num_groups};
    // The codes of the next part, or the beginning of the next block (it stands behind the scales).
    const uint8_t* next = w.codes + (g + count) * Layout::kCodeBytes;
    if (partial.is_last) next = w.codes + QuantBlock<Layout>::nbytes(w.num_groups);
    const int64_t next_nbytes =
        num_parts == 1 ? QuantBlock<Layout>::nbytes(w.num_groups) : part_groups * Layout::kCodeBytes;
    Ahead ahead = {next, next + next_nbytes};
    all_rows<Layout, Source>({codes, scales, count, &ahead}, x + g, w.num_groups, 0, num_rows, partial, out);
  }
}

template <WeightFormat kFormat, int kTerms>
void linear_quant_of(const PackedMatrix& w, const QuantRows& x, int64_t num_rows, float* y, int64_t y_stride,
                     int64_t block_begin, int64_t block_end, const Epilogue& epilogue) {
  using Layout = LayoutOf<kFormat>;
  using Group = typename Activations<kTerms>::Group;
  using Unpacked = typename Activations<kTerms>::template Unpacked<Layout>;
  const int64_t num_groups = w.cols / kGroup;
  const int64_t block_nbytes = QuantBlock<Layout>::nbytes(num_groups);
  const Group* groups = reinterpret_cast<const Group*>(x.groups);
  for (int64_t row = 0; row < num_rows; row += kChunkRows) {
    const int64_t chunk_rows = num_rows - row < kChunkRows ? num_rows - row : kChunkRows;
    const Group* chunk = groups + row * num_groups;
    for (int64_t block = block_begin; block < block_end; ++block) {
      const uint8_t* codes = w.data + block * block_nbytes;
      const Weights weights = {codes, codes + num_groups * Layout::kCodeBytes, num_groups};
      const Output out = block_output(w, y + row * y_stride, y_stride, block, epilogue);
      if constexpr (Layout::kBits < 8 || kTerms == 2) {
        // Bytes become words with little work: more rows must share it.
        constexpr int64_t kFromRows = Layout::kBits < 8 || kUnpackFromRows == INT64_MAX ? kUnpackFromRows : 32;
        if (chunk_rows >= kFromRows) {
          unpacked_block<Layout, Unpacked>(weights, chunk, chunk_rows, out);
          continue;
        }
      }
      all_rows<Layout, PackedSource<Layout>>(weights, chunk, num_groups, 0, chunk_rows, {nullptr, true, true}, out);
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
