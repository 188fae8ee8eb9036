// x[32g … 32g + 31] → q = round(x · 127 / a), scale = a / 127, with a the largest magnitude. With two
// terms, what that leaves over, x − q · scale, is quantised likewise.
namespace roost::ROOST_ISA {
namespace {

// Quantises the 32 values, and leaves in them what is left over.
ROOST_INLINE void quantize_group(F32& first, F32& second, QuantGroup* out) {
  const I32 magnitude_bits = I32::splat(0x7fffffff);
  constexpr int32_t kInfinityBits = 0x7f800000;
  // Below it 127 / a would overflow; such a group is zero.
  constexpr float kSmallest = 1e-35f;
  // Magnitudes compare as integers, and a NaN is above infinity: it cannot get lost.
  const I32 magnitude = max(first.as_i32() & magnitude_bits, second.as_i32() & magnitude_bits);
  const int32_t largest_bits = magnitude.max_lane();
  float largest;
  __builtin_memcpy(&largest, &largest_bits, sizeof(largest));
  const bool is_finite = largest_bits < kInfinityBits;
  if (!is_finite || largest < kSmallest) {
    *out = {};
    if (!is_finite) out->scale = out->scaled_sum = __builtin_nanf("");
    return;
  }
  const F32 inverse = F32::splat(127.0f / largest);
  const I32 q_first = (first * inverse).to_i32();
  const I32 q_second = (second * inverse).to_i32();
  q_first.store_i8(out->q);
  q_second.store_i8(out->q + kLanes);
  out->scale = largest / 127.0f;
  out->first_sum = q_first.sum();
  out->sum = out->first_sum + q_second.sum();
  out->scaled_sum = out->scale * static_cast<float>(out->sum);
  const F32 scale = F32::splat(out->scale);
  first = fnma(q_first.to_f32(), scale, first);
  second = fnma(q_second.to_f32(), scale, second);
}

void quantize_row(const float* x, int64_t cols, int num_terms, QuantGroup* out) {
  for (int64_t c = 0; c < cols; c += kGroup) {
    F32 first = F32::load(x + c);
    F32 second = F32::load(x + c + kLanes);
    for (int term = 0; term < num_terms; ++term, ++out) quantize_group(first, second, out);
  }
}

}  // namespace
}  // namespace roost::ROOST_ISA
