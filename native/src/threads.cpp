#include "threads.h"

#if defined(ROOST_X86)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <stdexcept>

namespace roost {
namespace {

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

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(std::max(1, num_threads)), members_(static_cast<size_t>(num_threads_)) {
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
  run_.value.fetch_add(1, std::memory_order_seq_cst);
  run_.value.notify_all();
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
  first_phase_ = phase_.value.load(std::memory_order_relaxed);
  members_[0].phase = first_phase_;
  run_.value.fetch_add(1, std::memory_order_seq_cst);
  run_.value.notify_all();
  body(context, 0);
  // Either a thread that comes now sees that the run is over, or it is seen inside: both sides store
  // before they load, in the one order of sequential consistency.
  run_.value.fetch_add(1, std::memory_order_seq_cst);
  for (size_t thread = 1; thread < members_.size(); ++thread) {
    const std::atomic<bool>& is_inside = members_[thread].is_inside;
    for (uint32_t i = 0; is_inside.load(std::memory_order_seq_cst); ++i) {
      // It has no piece left, and is on its way out.
      i < kMinSpins ? relax() : std::this_thread::yield();
    }
  }
}

bool ThreadPool::finish(int thread, Claims& claims, int64_t num_mine, int64_t num_pieces) {
  if (num_threads_ == 1) return true;
  Member& member = members_[static_cast<size_t>(thread)];
  const uint32_t phase = member.phase++;
  if (num_mine > 0 && claims.add_done(num_mine) == num_pieces) {
    phase_.value.store(phase + 1, std::memory_order_seq_cst);
    phase_.value.notify_all();
    return true;
  }
  // Before the phase is looked at: if that is not done, the run was not over, and this is its number.
  const uint32_t run = run_.value.load(std::memory_order_acquire);
  if (phase_.value.load(std::memory_order_acquire) != phase) return true;
  if (thread == 0) {
    member.spin.wait(phase_.value, phase);
    return true;
  }
  member.is_inside.store(false, std::memory_order_release);
  member.spin.wait(phase_.value, phase);
  return enter(member, run);
}

bool ThreadPool::enter(Member& member, uint32_t run) {
  member.is_inside.store(true, std::memory_order_seq_cst);
  if (run_.value.load(std::memory_order_seq_cst) == run) return true;
  member.is_inside.store(false, std::memory_order_release);
  return false;
}

void ThreadPool::work(int thread) {
  Member& member = members_[static_cast<size_t>(thread)];
  SpinWait idle(kMaxSpins);
  uint32_t seen = 0;
  for (;;) {
    idle.wait(run_.value, seen);
    if (is_closing_.load(std::memory_order_relaxed)) return;
    seen = run_.value.load(std::memory_order_acquire);
    if (seen % 2 == 0 || !enter(member, seen)) continue;
    member.phase = first_phase_;
    body_(context_, thread);
    member.is_inside.store(false, std::memory_order_release);
  }
}

}  // namespace roost
