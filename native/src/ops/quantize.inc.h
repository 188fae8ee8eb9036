// x[32g … 32g + 31] → q = round(x · n / a), scale = a / n, with a the largest magnitude, and n = 127 or,
// for fine groups, 32,767.
namespace roost::ROOST_ISA {
namespace {

// The two sizes of activations. Below its kSmallest n / a might overflow: such a group is zero.
struct QuantGroupKind {
  using Group = QuantGroup;
  static constexpr float kLargest = 127.0f;
  static constexpr float kSmallest = 1e-35f;
  static ROOST_INLINE void store(I32 first, I32 second, QuantGroup* out) {
    first.store_i8(out->q);
    second.store_i8(out->q + kLanes);
  }
};
struct FineGroupKind {
  using Group = FineGroup;
  static constexpr float kLargest = 32767.0f;
  static constexpr float kSmallest = 1e-33f;
  static ROOST_INLINE void store(I32 first, I32 second, FineGroup* out) {
    first.store_i16_even_odd(out->q);
    second.store_i16_even_odd(out->q + kLanes);
  }
};

template <class Kind>
ROOST_INLINE void quantize_group(F32 first, F32 second, typename Kind::Group* out) {
  const I32 magnitude_bits = I32::splat(0x7fffffff);
  constexpr int32_t kInfinityBits = 0x7f800000;
  // Magnitudes compare as integers, and a NaN is above infinity: it cannot get lost.
  const I32 magnitude = max(first.as_i32() & magnitude_bits, second.as_i32() & magnitude_bits);
  const int32_t largest_bits = magnitude.max_lane();
  float largest;
  __builtin_memcpy(&largest, &largest_bits, sizeof(largest));
  const bool is_finite = largest_bits < kInfinityBits;
  if (!is_finite || largest < Kind::kSmallest) {
    *out = {};
    if (!is_finite) out->scale = out->scaled_sum = __builtin_nanf("");
    return;
  }
  const F32 inverse = F32::splat(Kind::kLargest / largest);
  const I32 q_first = (first * inverse).to_i32();
  const I32 q_second = (second * inverse).to_i32();
  Kind::store(q_first, q_second, out);
  out->scale = largest / Kind::kLargest;
  out->first_sum = q_first.sum();
  out->sum = out->first_sum + q_second.sum();
  out->scaled_sum = out->scale * static_cast<float>(out->sum);
}

template <class Kind>
void quantize_row_as(const float* x, int64_t cols, typename Kind::Group* out) {
  for (int64_t c = 0; c < cols; c += kGroup, ++out) {
    quantize_group<Kind>(F32::load(x + c), F32::load(x + c + kLanes), out);
  }
}

void quantize_row(const float* x, int64_t cols, int num_terms, QuantGroup* out) {
  if (num_terms == 1) {
    quantize_row_as<QuantGroupKind>(x, cols, out);
  } else {
    quantize_row_as<FineGroupKind>(x, cols, reinterpret_cast<FineGroup*>(out));
  }
}

}  // namespace
}  // namespace roost::ROOST_ISA
