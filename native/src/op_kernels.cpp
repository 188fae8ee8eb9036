#include "op_kernels.h"

#include <algorithm>

#include "kernels.h"

namespace roost {

int64_t attention_scratch_floats(int64_t group, int64_t head_dim) {
  const int64_t rows = std::max(kTaskQueryRows, group);
  const int64_t score_stride = kSplitTokens + kPageTokens;
  return rows * (3 * head_dim + score_stride + 4) + kRunPages * kPageTokens * head_dim;
}

}  // namespace roost
