// How the benchmarks measure, and what a machine can do at most.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "cpu_features.h"
#include "threads.h"

#if defined(ROOST_X86)
#include <immintrin.h>
#endif

namespace roost {
namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Runs body(thread) on the pool.
template <class Body>
void run_on(ThreadPool& pool, const Body& body) {
  pool.run([](void* context, int thread) { (*static_cast<const Body*>(context))(thread); }, const_cast<Body*>(&body));
}

// fn(part) for as many parts as the pool has threads, each on a thread of its own if that comes in time.
template <class Fn>
void for_parts(ThreadPool& pool, const Fn& fn) {
  Claims claims;
  run_on(pool, [&](int thread) {
    int64_t num_mine = 0;
    for (int64_t part; (part = claims.take(1)) < pool.num_threads(); ++num_mine) fn(static_cast<size_t>(part));
    pool.finish(thread, claims, num_mine, pool.num_threads());
  });
}

// The best of so many runs, in seconds: other programs only ever make it slower.
template <class Fn>
double best_s(int num_runs, const Fn& fn) {
  double best = 1e30;
  for (int i = 0; i < num_runs; ++i) {
    const double begin = now_s();
    fn();
    best = std::min(best, now_s() - begin);
  }
  return best;
}

struct Buffer {
  explicit Buffer(size_t nbytes)
      : size(nbytes), data(static_cast<uint8_t*>(std::aligned_alloc(4096, nbytes)), std::free) {
    std::memset(data.get(), 1, nbytes);
  }
  size_t size;
  std::unique_ptr<uint8_t, void (*)(void*)> data;
};

#if defined(ROOST_X86)
// AVX2 loads keep one core's share of the memory busy on every x86 machine that has it.
__attribute__((target("avx2"))) uint64_t read_avx2(const uint8_t* data, size_t nbytes) {
  __m256i sums[4] = {};
  for (size_t i = 0; i < nbytes; i += 128) {
    for (size_t j = 0; j < 4; ++j) {
      sums[j] = _mm256_add_epi64(sums[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
    }
  }
  const __m256i sum = _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
  alignas(32) uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), sum);
  return words[0] + words[1] + words[2] + words[3];
}
#endif

uint64_t read_words(const uint8_t* data, size_t nbytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < nbytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, 8);
    sum += word;
  }
  return sum;
}

uint64_t read_all(const Buffer& buffer) {
#if defined(ROOST_X86)
  if (is_supported(Isa::kAvx2)) return read_avx2(buffer.data.get(), buffer.size);
#endif
  return read_words(buffer.data.get(), buffer.size);
}

// Each thread reads a buffer of its own, `times` over.
double read_gb_s(ThreadPool& pool, size_t nbytes, int times, int num_runs) {
  std::vector<Buffer> parts;
  for (int i = 0; i < pool.num_threads(); ++i) parts.emplace_back(nbytes);
  std::vector<uint64_t> sums(parts.size() * 8);
  const double seconds = best_s(num_runs, [&] {
    for_parts(pool, [&](size_t part) {
      for (int i = 0; i < times; ++i) sums[part * 8] += read_all(parts[part]);
    });
  });
  if (sums[0] == 0) std::abort();
  return static_cast<double>(parts.size() * nbytes) * times / seconds / 1e9;
}

// As if nothing but their instruction had to be done: registers only, and enough of them that no
// result is waited for. 0 where it is not known how.
struct Peaks {
  double int8_gmac_s;
  double f32_gmac_s;
};

constexpr int kLoops = 100'000;
constexpr int kChains = 12;

#if defined(ROOST_X86)
#define ROOST_EACH(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)
#define ROOST_REGISTERS "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"
#define ROOST_LOOP(op)                                                                \
  do {                                                                                \
    for (int i = 0; i < kLoops; ++i) asm volatile(ROOST_EACH(op)::: ROOST_REGISTERS); \
  } while (false)
#define ROOST_DOT_512(i) "vpdpbusd %%zmm15, %%zmm14, %%zmm" #i "\n"
#define ROOST_FMA_512(i) "vfmadd231ps %%zmm15, %%zmm14, %%zmm" #i "\n"
#define ROOST_DOT_256(i) "vpmaddubsw %%ymm15, %%ymm14, %%ymm" #i "\n"
#define ROOST_FMA_256(i) "vfmadd231ps %%ymm15, %%ymm14, %%ymm" #i "\n"

Peaks peaks(ThreadPool& pool, Isa isa) {
  if (isa == Isa::kPortable) return {0, 0};
  // The multiplicands are zeros: a denormal among them would tell of another machine.
  const auto gmac_s = [&](double macs, auto loop) {
    const auto work = [&](size_t) {
      asm volatile("vpxor %%xmm14, %%xmm14, %%xmm14\nvpxor %%xmm15, %%xmm15, %%xmm15" ::: "xmm14", "xmm15");
      loop();
      asm volatile("vzeroupper");
    };
    const double seconds = best_s(20, [&] { for_parts(pool, work); });
    return pool.num_threads() * macs * kChains * kLoops / seconds / 1e9;
  };
  if (isa == Isa::kAvx512) {
    return {gmac_s(64, [] { ROOST_LOOP(ROOST_DOT_512); }), gmac_s(16, [] { ROOST_LOOP(ROOST_FMA_512); })};
  }
  return {gmac_s(32, [] { ROOST_LOOP(ROOST_DOT_256); }), gmac_s(8, [] { ROOST_LOOP(ROOST_FMA_256); })};
}
#else
Peaks peaks(ThreadPool&, Isa) { return {0, 0}; }
#endif

// The best instruction set that this machine runs.
Isa best_isa() {
  Isa best = Isa::kPortable;
  for (size_t i = 0; i < kIsaNames.size(); ++i) {
    if (is_supported(static_cast<Isa>(i))) best = static_cast<Isa>(i);
  }
  return best;
}

}  // namespace
}  // namespace roost
