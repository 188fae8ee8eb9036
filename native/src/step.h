// One step as native code sees it: what comes in, and what is derived from it once a step.
#pragma once

#include <cstdint>
#include <vector>

#include "sampler.h"

namespace roost {

// Rows are tokens; the rows of a slice are consecutive tokens of one sequence. All of it is checked.
struct StepInputs {
  int64_t num_rows;
  const int32_t* token_ids;  // [num_rows]
  const int32_t* positions;  // [num_rows]
  int64_t num_slices;
  const int32_t* slice_offsets;  // [num_slices + 1]
  const int32_t* pages;          // the slices' page tables, one after another
  const int32_t* page_offsets;   // [num_slices + 1]
  int64_t num_heads;
  const HeadRecord* heads;  // [num_heads]
  RaggedPools pools;
};

struct StepResults {
  int32_t* token_ids;   // [num_heads]
  float* logprobs;      // [num_heads]
  int32_t* top_ids;     // [num_heads, num_top]
  float* top_logprobs;  // [num_heads, num_top]
  int64_t num_top;
  float* picked_logprobs;         // one after another
  const int32_t* picked_offsets;  // [num_heads + 1]
  uint8_t* faults;                // [num_heads]
};

// A piece of attention work: some consecutive rows over some splits, for every KV head.
struct AttentionPiece {
  int64_t slice;  // whose pages are read
  int64_t row;    // first row of the step
  int64_t num_rows;
  int64_t first_position;  // of the first row, or for rows of several slices one that sees all of the splits
  int64_t split_begin;
  int64_t split_end;
  bool is_prepared;  // the rows' queries, keys and values are, before any piece begins
  // Offset of KV head 0's states of split_begin in the partial buffer, or −1: finishes by itself.
  int64_t partial;
  int64_t partial_stride;  // from KV head to KV head
  int64_t split_stride;    // from split to split
};

struct AttentionKind {
  int64_t group;  // query heads a KV head
  bool is_windowed;

  bool operator==(const AttentionKind&) const = default;
};

// Pieces for one kind of attention. `merges` joins the splits of what was cut up.
struct AttentionPlan {
  int64_t group;
  std::vector<AttentionPiece> pieces;
  std::vector<AttentionPiece> merges;
  std::vector<float> partials;
};

struct Step {
  const StepInputs* in;
  const StepResults* out;
  std::vector<int32_t> row_pages;      // [num_rows]: the page that takes the row's K and V
  std::vector<int32_t> prepared_rows;  // those whose queries, keys and values several pieces read
  std::vector<AttentionPlan> attention;
};

}  // namespace roost
