// A small program on one and on three threads, for the sanitizers: same bits, no race, no overrun.
#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "checks.h"
#include "pack.h"

namespace roost {
namespace {

constexpr int64_t kHidden = 64, kHeads = 6, kKvHeads = 2, kHeadDim = 16, kFfn = 96, kVocab = 131;

// Weights, 64-byte aligned.
struct Packed {
  LazyMemory memory;
  PackedMatrix matrix;
};

float wave(int64_t i) { return std::sin(static_cast<float>(i * i % 1009) * 0.37f); }

Packed pack_f32(int64_t rows, int64_t cols) {
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < values.size(); ++i) values[i] = wave(static_cast<int64_t>(i) + rows) * 0.2f;
  Packed p{LazyMemory(static_cast<size_t>(packed_nbytes(WeightFormat::kF32, rows, cols))), {}};
  const float scale =
      pack(GgmlType::kF32, reinterpret_cast<const uint8_t*>(values.data()), rows, cols, p.memory.data());
  p.matrix = {WeightFormat::kF32, rows, cols, scale, p.memory.data()};
  return p;
}

Packed pack_q8(int64_t rows, int64_t cols) {
  std::vector<uint8_t> blocks(static_cast<size_t>(rows * cols / 32 * 34));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t at = i % 34;
    // f16 0x1c00 is 2^-8
    blocks[i] = at == 0 ? 0x00 : at == 1 ? 0x1c : static_cast<uint8_t>(i * 37 + 11);
  }
  Packed p{LazyMemory(static_cast<size_t>(packed_nbytes(WeightFormat::kU8, rows, cols))), {}};
  const float scale = pack(GgmlType::kQ8_0, blocks.data(), rows, cols, p.memory.data());
  p.matrix = {WeightFormat::kU8, rows, cols, scale, p.memory.data()};
  return p;
}

struct Model {
  Packed table = pack_f32(kVocab, kHidden);
  Packed qkv = pack_q8((kHeads + 2 * kKvHeads) * kHeadDim, kHidden);
  Packed out = pack_q8(kHidden, kHeads* kHeadDim);
  Packed gate_up = pack_q8(2 * kFfn, kHidden);
  Packed down = pack_q8(kHidden, kFfn);
  std::vector<float> ones = std::vector<float>(kHidden, 1.0f);

  std::unique_ptr<Program> record(Isa isa, ThreadPool& pool, KvType kv) const {
    auto p = std::make_unique<Program>(isa, pool, Limits{64, 64, 2048},
                                       std::make_unique<KvCache>(128, 1, kKvHeads, kHeadDim, kv));
    const int64_t x = p->add_buffer(kHidden), wide = p->add_buffer(2 * kFfn), q = p->add_buffer(kHeads * kHeadDim);
    const int64_t attended = p->add_buffer(kHeads * kHeadDim);
    const int64_t narrow_q = p->add_quantised(kHidden, 2), wide_q = p->add_quantised(kHeads * kHeadDim, 1);
    const int64_t norm = p->add_vector(ones.data(), kHidden);
    const int64_t rope = p->add_rope({1.0f, 0.5f, 0.25f, 0.1f, 0.05f, 0.02f, 0.01f, 0.001f}, RopeStyle::kHalf, 1.0f);
    const int64_t q_size = kHeads * kHeadDim, kv_size = kKvHeads * kHeadDim;
    const BufferView none{-1, 0, 0};
    p->embed(p->add_matrix({table.matrix}), 1.0f, x);
    p->rms_norm({x, 0, kHidden}, norm, 1e-5f, -1, narrow_q, true);
    p->linear(p->add_matrix({qkv.matrix}), none, narrow_q, -1, wide, false);
    const std::vector<HeadsPart> parts = {{{wide, 0, q_size}, kHeadDim, -1, 0.0f, rope},
                                          {{wide, q_size, kv_size}, kHeadDim, -1, 0.0f, rope},
                                          {{wide, q_size + kv_size, kv_size}, kHeadDim, -1, 0.0f, -1}};
    p->attention(parts, {0, kHeads, 0}, 0.25f, q, attended, -1);
    p->quantise({attended, 0, q_size}, wide_q);
    p->linear(p->add_matrix({out.matrix}), none, wide_q, -1, x, true);
    p->rms_norm({x, 0, kHidden}, norm, 1e-5f, -1, narrow_q, true);
    p->gated_linear(p->add_matrix({gate_up.matrix}), none, narrow_q, -1, Activation::kSilu, -1, wide_q);
    p->linear(p->add_matrix({down.matrix}), none, wide_q, -1, x, true);
    p->head({x, 0, kHidden}, norm, 1e-5f, p->add_matrix({table.matrix}), 1.0f, 2);
    p->finish();
    return p;
  }
};

// A prompt in steps of `chunk` rows; a sampled token with alternatives after each row.
std::vector<float> run(Program& program, int64_t length, int64_t chunk) {
  std::vector<float> seen;
  std::vector<int32_t> pages(128);
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(127 - i);
  for (int64_t start = 0; start < length; start += chunk) {
    const int64_t rows = std::min(chunk, length - start);
    std::vector<int32_t> ids, positions;
    std::vector<HeadRecord> heads;
    for (int64_t i = 0; i < rows; ++i) {
      ids.push_back(static_cast<int32_t>((start + i) * 7 % kVocab));
      positions.push_back(static_cast<int32_t>(start + i));
      HeadRecord head{};
      head.seed = 5;
      head.position = start + i;
      head.row = static_cast<int32_t>(i);
      head.flags = HeadRecord::kIsSampled | HeadRecord::kWantsLogprob;
      head.num_top = 3;
      head.temperature = 1.0f;
      head.top_p = 0.9f;
      head.repetition_penalty = 1.1f;
      head.mask_begin = -1;
      heads.push_back(head);
    }
    const int32_t slices[] = {0, static_cast<int32_t>(rows)};
    const int32_t tables[] = {0, 128};
    const auto n = static_cast<size_t>(rows);
    std::vector<int32_t> token_ids(n), top_ids(3 * n), picked(n + 1, 0);
    std::vector<float> logprobs(n), top_logprobs(3 * n);
    std::vector<uint8_t> faults(n);
    const StepInputs in{rows,
                        ids.data(),
                        positions.data(),
                        1,
                        slices,
                        pages.data(),
                        tables,
                        rows,
                        heads.data(),
                        {nullptr, 0, nullptr, 0, nullptr, 0}};
    const StepResults out{token_ids.data(), logprobs.data(), top_ids.data(), top_logprobs.data(), 3,
                          nullptr,          picked.data(),   faults.data()};
    check(program, in, out);
    program.run(in, out);
    for (size_t i = 0; i < n; ++i) {
      CHECK(faults[i] == 0);
      seen.push_back(static_cast<float>(token_ids[i]));
      seen.push_back(logprobs[i]);
      seen.insert(seen.end(), top_logprobs.begin() + static_cast<int64_t>(3 * i),
                  top_logprobs.begin() + static_cast<int64_t>(3 * i + 3));
    }
  }
  return seen;
}

void test_program_over(const Model& model, KvType kv, int64_t length) {
  std::vector<float> expected;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (!is_supported(isa)) continue;
    for (const int num_threads : {1, 3}) {
      ThreadPool pool(num_threads);
      const auto program = model.record(isa, pool, kv);
      const std::vector<float> seen = run(*program, length, num_threads == 1 ? 64 : 37);
      if (expected.empty()) expected = seen;
      CHECK(seen.size() == expected.size());
      CHECK(std::memcmp(seen.data(), expected.data(), seen.size() * sizeof(float)) == 0);
    }
  }
}

}  // namespace

void test_program() {
  const Model model;
  test_program_over(model, KvType::kBf16, 560);
  test_program_over(model, KvType::kInt8, 150);
}

}  // namespace roost
