#include "cpu_features.h"

namespace roost {

bool is_supported(Isa isa) {
  if (isa == Isa::kPortable) return true;
#if defined(ROOST_EMULATE_AVX512)
  if (isa == Isa::kAvx512) return true;
#endif
#if defined(ROOST_X86)
  // The builtin asks cpuid and, through xgetbv, whether the kernel saves the registers.
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (isa == Isa::kAvx2) return has_avx2;
#endif
#if defined(ROOST_AVX512)
  return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

}  // namespace roost
