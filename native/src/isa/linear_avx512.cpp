// The linear kernels for AVX-512 with VNNI.
#define ROOST_ISA avx512
#include "../simd/avx512.h"

#include "../ops/linear_quant.inc.h"

#include "../ops/linear_float.inc.h"

#include "../ops/dequantize.inc.h"
#include "../ops/quantize.inc.h"

namespace roost::ROOST_ISA {

extern const LinearKernels linear_kernels = {linear_quant, linear_float, quantize_row, dequantize_row};

}  // namespace roost::ROOST_ISA
