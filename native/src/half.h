// f16 and bf16 bits ↔ f32, for code that is not compiled for one instruction set.
#pragma once

#include <cstdint>

namespace roost {

float half_to_float(uint16_t bits);
// To nearest even; past the largest half, infinity.
uint16_t float_to_half(float value);
float brain_to_float(uint16_t bits);

}  // namespace roost
