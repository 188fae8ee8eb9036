// How a step's attention is cut into pieces. The cuts have no influence on any result.
#pragma once

#include <cstdint>

#include "step.h"

namespace roost {

struct PlanShape {
  int64_t num_kv_heads;
  int64_t head_dim;
  int num_threads;
};

// Fills `plan` for attention of this kind.
void plan_attention(const StepInputs& inputs, AttentionKind kind, const PlanShape& shape, AttentionPlan& plan);

}  // namespace roost
