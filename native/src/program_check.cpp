// Everything that a step's inputs could be wrong in, looked at once, so that ops need not.
#include <stdexcept>
#include <string>

#include "program.h"

namespace roost {
namespace {

void require(bool is_met, const std::string& what) {
  if (!is_met) throw std::invalid_argument(what);
}

std::string at(const char* name, int64_t index, int64_t value) {
  return std::string(name) + "[" + std::to_string(index) + "] = " + std::to_string(value);
}

void check_slices(const Program& program, const StepInputs& in) {
  require(in.num_rows > 0, "a step needs at least one row");
  require(in.num_rows <= program.limits().max_rows, "the step has " + std::to_string(in.num_rows) +
                                                        " rows; the program takes " +
                                                        std::to_string(program.limits().max_rows));
  require(in.slice_offsets[0] == 0, "slice_offsets must start at 0");
  require(in.slice_offsets[in.num_slices] == in.num_rows, "slice_offsets must end at the number of rows");
  for (int64_t s = 0; s < in.num_slices; ++s) {
    const int64_t begin = in.slice_offsets[s];
    const int64_t end = in.slice_offsets[s + 1];
    require(begin < end, at("slice_offsets", s, begin) + " does not rise");
    const int64_t num_pages = in.page_offsets[s + 1] - in.page_offsets[s];
    require(in.positions[begin] >= 0, at("positions", begin, in.positions[begin]) + " is negative");
    for (int64_t row = begin + 1; row < end; ++row) {
      require(in.positions[row] == in.positions[row - 1] + 1,
              at("positions", row, in.positions[row]) + " does not follow the row before");
    }
    const int64_t last = in.positions[end - 1];
    require(last < program.limits().max_context_tokens, at("positions", end - 1, last) + " is past the context");
    require(last / kPageTokens < num_pages, "slice " + std::to_string(s) + " has " + std::to_string(num_pages) +
                                                " pages, too few for position " + std::to_string(last));
    for (int64_t i = 0; i <= last / kPageTokens; ++i) {
      const int32_t page = in.pages[in.page_offsets[s] + i];
      require(page >= 0 && page < program.kv().num_pages(), at("pages", in.page_offsets[s] + i, page) + " is no page");
    }
  }
}

void check_ids(const Program& program, const StepInputs& in, int64_t begin, int64_t count, const char* what) {
  require(begin >= 0 && count >= 0 && begin + count <= in.pools.num_ints, std::string(what) + " out of range");
  for (int64_t i = begin; i < begin + count; ++i) {
    const int32_t id = in.pools.ints[i];
    require(id >= 0 && id < program.vocab_size(),
            std::string(what) + " holds " + std::to_string(id) + ", which is no token id");
  }
}

void check_head(const Program& program, const StepInputs& in, const HeadRecord& r, int64_t index) {
  require(r.row >= 0 && r.row < in.num_rows, at("heads", index, r.row) + " is no row");
  require(r.num_top >= 0 && r.num_top <= kMaxTop, at("num_top", index, r.num_top) + " is not in [0, 128]");
  if ((r.flags & HeadRecord::kIsSampled) == 0) {
    require(r.target >= 0 && r.target < program.vocab_size(), at("target_id", index, r.target) + " is no token id");
  }
  check_ids(program, in, r.bias_begin, r.bias_count, "bias_ids");
  require(r.bias_values_begin >= 0 && r.bias_values_begin + r.bias_count <= in.pools.num_floats,
          "bias_values out of range");
  check_ids(program, in, r.prompt_begin, r.prompt_count, "prompt_ids");
  check_ids(program, in, r.generated_begin, r.generated_count, "generated_ids");
  check_ids(program, in, r.banned_begin, r.banned_count, "banned_ids");
  check_ids(program, in, r.picked_begin, r.picked_count, "picked_ids");
  const int64_t words = (program.vocab_size() + 31) / 32;
  require(r.mask_begin < 0 || r.mask_begin + words <= in.pools.num_masks, "allowed is too short");
}

}  // namespace

void check(const Program& program, const StepInputs& in, const StepResults& out) {
  check_slices(program, in);
  for (int64_t row = 0; row < in.num_rows; ++row) {
    const int32_t id = in.token_ids[row];
    require(id >= 0 && id < program.token_ids_end(), at("token_ids", row, id) + " is no token id");
  }
  require(in.num_heads <= program.limits().max_logits_rows,
          "the step wants the logits of " + std::to_string(in.num_heads) + " rows; the program takes " +
              std::to_string(program.limits().max_logits_rows));
  for (int64_t i = 0; i < in.num_heads; ++i) {
    const HeadRecord& r = in.heads[i];
    check_head(program, in, r, i);
    require(r.num_top <= out.num_top, "top_ids is too narrow");
    require(out.picked_offsets[i + 1] - out.picked_offsets[i] == r.picked_count, "picked_offsets do not fit");
  }
}

}  // namespace roost
