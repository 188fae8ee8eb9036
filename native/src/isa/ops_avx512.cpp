// The ops beside the linear layers for one instruction set.
#define ROOST_ISA avx512
// 12 sums hide the latency of two fused multiply-add ports (2 x 4 cycles).
#define ROOST_ATTENTION_ROWS 12

#include "../kernels.h"
#include "../op_kernels.h"
#include "../simd/avx512.h"

#include "../ops/exp.inc.h"
#include "../ops/rows.inc.h"
#include "../ops/kv_store.inc.h"
#include "../ops/logits.inc.h"
#include "../ops/attention.inc.h"

namespace roost::ROOST_ISA {

extern const OpKernels op_kernels = {
    rms_norm, gated, add, scale, rope, store_k, store_v, attend, merge, scan, sum_exp, select_range,
};

}  // namespace roost::ROOST_ISA
