#include "threads.h"

#if defined(ROOST_X86)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <stdexcept>

namespace roost {
namespace {

// About 50 µs of pause instructions: several times the longest usual wait between two ops of a
// decode step, and still short beside a scheduler's time slice.
constexpr uint32_t kMaxSpins = 2000;
constexpr uint32_t kMinSpins = 64;

inline void relax() {
#if defined(ROOST_X86)
  _mm_pause();
#else
  __asm__ __volatile__("yield" ::: "memory");
#endif
}

}  // namespace

void SpinWait::wait(const std::atomic<uint32_t>& word, uint32_t old) {
  for (uint32_t i = 0; i < spins_; ++i) {
    if (word.load(std::memory_order_acquire) != old) {
      spins_ = std::min(max_spins_, spins_ + spins_ / 8 + 1);
      return;
    }
    relax();
  }
  spins_ = std::max(kMinSpins, spins_ / 2);
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

ThreadPool::ThreadPool(int num_threads) : num_threads_(std::max(1, num_threads)) {
  waiters_.assign(static_cast<size_t>(num_threads_), Waiter{SpinWait(kMaxSpins)});
  threads_.reserve(static_cast<size_t>(num_threads_ - 1));
  try {
    for (int thread = 1; thread < num_threads_; ++thread) threads_.emplace_back([this, thread] { work(thread); });
  } catch (...) {
    close();
    throw;
  }
}

ThreadPool::~ThreadPool() { close(); }

void ThreadPool::close() {
  const std::lock_guard lock(run_mutex_);
  is_closing_.store(true, std::memory_order_relaxed);
  // The stores that wake others are sequentially consistent: a weaker one could still wait in the
  // store buffer while notify_all looks for sleepers and finds none.
  epoch_.value.fetch_add(1, std::memory_order_seq_cst);
  epoch_.value.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ThreadPool::run(Body body, void* context) {
  const std::lock_guard lock(run_mutex_);
  if (is_closing_.load(std::memory_order_relaxed)) throw std::logic_error("the thread pool is closed");
  if (num_threads_ == 1) {
    body(context, 0);
    return;
  }
  body_ = body;
  context_ = context;
  epoch_.value.fetch_add(1, std::memory_order_seq_cst);
  epoch_.value.notify_all();
  body(context, 0);
  barrier(0);
}

void ThreadPool::barrier(int thread) {
  if (num_threads_ == 1) return;
  const uint32_t phase = phase_.value.load(std::memory_order_relaxed);
  const uint32_t before = arrived_.value.fetch_add(1, std::memory_order_acq_rel);
  if (before + 1 == static_cast<uint32_t>(num_threads_)) {
    arrived_.value.store(0, std::memory_order_relaxed);
    phase_.value.store(phase + 1, std::memory_order_seq_cst);
    phase_.value.notify_all();
    return;
  }
  waiters_[static_cast<size_t>(thread)].spin.wait(phase_.value, phase);
}

void ThreadPool::work(int thread) {
  SpinWait idle(kMaxSpins);
  uint32_t seen = 0;
  for (;;) {
    idle.wait(epoch_.value, seen);
    ++seen;
    if (is_closing_.load(std::memory_order_relaxed)) return;
    body_(context_, thread);
    barrier(thread);
  }
}

}  // namespace roost
