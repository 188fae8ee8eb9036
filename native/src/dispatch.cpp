// Which tables a program calls.
#include "program.h"

namespace roost {

Kernels kernels_of(Isa isa) {
#if defined(ROOST_AVX512)
  if (isa == Isa::kAvx512) return {&avx512::linear_kernels, &avx512::op_kernels};
#endif
#if defined(ROOST_X86)
  if (isa == Isa::kAvx2) return {&avx2::linear_kernels, &avx2::op_kernels};
#endif
  (void)isa;
  return {&portable::linear_kernels, &portable::op_kernels};
}

}  // namespace roost
