// The ops beside the linear layers for one instruction set.
#define ROOST_ISA avx2
// 12 of 16 registers for sums, the rest for a page's vector and a broadcast.
#define ROOST_ATTENTION_ROWS 6

#include "../kernels.h"
#include "../op_kernels.h"
#include "../simd/avx2.h"

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
