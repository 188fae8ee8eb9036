// A token's K and V of one head, into its page (op_kernels.h has the layouts).
//
// int8: a = the largest magnitude of a group (32 values of K, all of V), q = round(x · 127 / a), scale = a / 127.
// Nothing but the token's own values decides its bits: not its page, not the tokens beside it, not the step that
// computed it.
namespace roost::ROOST_ISA {
namespace kv {

// The codes of x[0 … n), `stride` bytes apart. A value that is not finite makes the scale NaN and the
// codes zero: then every score with it is NaN.
ROOST_INLINE void store_codes(const float* x, int64_t n, int64_t stride, int8_t* codes, float* scale) {
  constexpr int32_t kInfinityBits = 0x7f800000;
  // Below it 127 / a would overflow; such a group is zero.
  constexpr float kSmallest = 1e-35f;
  // Magnitudes compare as integers, and a NaN is above infinity: it cannot get lost.
  const I32 magnitude_bits = I32::splat(0x7fffffff);
  I32 magnitude = I32::zero();
  for (int64_t c = 0; c < n; c += kLanes) {
    magnitude = max(magnitude, F32::load(x + c).as_i32() & magnitude_bits);
  }
  const int32_t largest_bits = magnitude.max_lane();
  float largest;
  __builtin_memcpy(&largest, &largest_bits, sizeof(largest));
  const bool is_finite = largest_bits < kInfinityBits;
  const bool is_zero = !is_finite || largest < kSmallest;
  const F32 inverse = F32::splat(is_zero ? 0.0f : 127.0f / largest);
  for (int64_t c = 0; c < n; c += kLanes) {
    int8_t q[kLanes];
    (is_zero ? I32::zero() : (F32::load(x + c) * inverse).to_i32()).store_i8(q);
    for (int i = 0; i < kLanes; ++i) codes[(c + i) * stride] = q[i];
  }
  *scale = !is_finite ? __builtin_nanf("") : is_zero ? 0.0f : largest / 127.0f;
}

ROOST_INLINE float* scales(KvHeadPage page) {
  return reinterpret_cast<float*>(page.data + kv_code_bytes(page.head_dim));
}

}  // namespace kv

void store_k(const float* k, KvHeadPage page, int64_t slot) {
  if (page.type == KvType::kInt8) {
    int8_t* to = reinterpret_cast<int8_t*>(page.data) + slot;
    float* scale = kv::scales(page) + slot;
    for (int64_t c = 0; c < page.head_dim; c += kKeyGroup, scale += kPageTokens) {
      const int64_t n = page.head_dim - c < kKeyGroup ? page.head_dim - c : kKeyGroup;
      kv::store_codes(k + c, n, kPageTokens, to + c * kPageTokens, scale);
    }
    return;
  }
  if (page.type == KvType::kF32) {
    float* to = reinterpret_cast<float*>(page.data) + slot;
    for (int64_t c = 0; c < page.head_dim; ++c) to[c * kPageTokens] = k[c];
    return;
  }
  uint16_t* to = reinterpret_cast<uint16_t*>(page.data) + 2 * slot;
  for (int64_t c = 0; c < page.head_dim; c += 2) {
    to[c * kPageTokens] = f32_to_bf16(k[c]);
    to[c * kPageTokens + 1] = f32_to_bf16(k[c + 1]);
  }
}

void store_v(const float* v, KvHeadPage page, int64_t slot) {
  if (page.type == KvType::kInt8) {
    int8_t* to = reinterpret_cast<int8_t*>(page.data) + slot * page.head_dim;
    kv::store_codes(v, page.head_dim, 1, to, kv::scales(page) + slot);
    return;
  }
  if (page.type == KvType::kF32) {
    float* to = reinterpret_cast<float*>(page.data) + slot * page.head_dim;
    for (int64_t c = 0; c < page.head_dim; ++c) to[c] = v[c];
    return;
  }
  uint16_t* to = reinterpret_cast<uint16_t*>(page.data) + (slot / 2) * 2 * page.head_dim + slot % 2;
  for (int64_t c = 0; c < page.head_dim; ++c) to[2 * c] = f32_to_bf16(v[c]);
}

}  // namespace roost::ROOST_ISA
