// The linear kernels in plain C++: the judge of the others, and the code of other processors.
#define ROOST_ISA portable
#include "../simd/portable.h"

#include "../ops/linear_quant.inc.h"

#include "../ops/linear_float.inc.h"

#include "../ops/dequantize.inc.h"
#include "../ops/quantize.inc.h"

namespace roost::ROOST_ISA {

extern const LinearKernels linear_kernels = {linear_quant, linear_float, quantize_row, dequantize_row};

}  // namespace roost::ROOST_ISA
