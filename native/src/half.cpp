#include "half.h"

#include <bit>
#include <cmath>

namespace roost {

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  uint32_t magnitude;
  if (exponent == 0x1fu) {
    magnitude = 0x7f800000u | fraction << 13;
  } else if (exponent != 0) {
    magnitude = (exponent + 112u) << 23 | fraction << 13;
  } else {
    // A subnormal half counts in units of 2^-24.
    magnitude = std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24f);
  }
  return std::bit_cast<float>(sign | magnitude);
}

uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // 65,520 and above round to infinity
  } else if (magnitude < 0x38800000u) {
    // A subnormal half counts in units of 2^-24; nearbyint rounds to nearest even.
    half = static_cast<uint32_t>(std::nearbyint(std::ldexp(std::fabs(value), 24)));
  } else {
    const uint32_t rebased = magnitude - (112u << 23);
    half = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

float brain_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

}  // namespace roost
