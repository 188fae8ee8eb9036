// The ops beside the linear layers for one instruction set.
#define ROOST_ISA portable
// any number does: nothing is kept in registers here.
#define ROOST_ATTENTION_ROWS 2

#include "../kernels.h"
#include "../op_kernels.h"
#include "../simd/portable.h"

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
