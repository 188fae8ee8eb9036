// The threads that compute: they start once, meet at barriers between ops, and sleep when idle.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace roost {

// Waits on a word: spins for a while, then sleeps until the word changes.
class SpinWait {
 public:
  explicit SpinWait(uint32_t max_spins) : max_spins_(max_spins), spins_(max_spins) {}

  // Returns once `word` differs from `old`. Everything before the store that changed it is seen.
  void wait(const std::atomic<uint32_t>& word, uint32_t old);

 private:
  uint32_t max_spins_;
  // Halved when spinning was in vain (more threads than cores), raised slowly when it paid.
  uint32_t spins_;
};

class ThreadPool {
 public:
  using Body = void (*)(void* context, int thread);

  // num_threads ≥ 1, the caller of `run` included.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Runs body(context, thread) on every thread, the caller being thread 0; returns when all have
  // returned. One run at a time; a second caller waits. body must not throw. Throws std::logic_error
  // when the pool is closed.
  void run(Body body, void* context);

  // Within a run: returns when every thread has come here. What any of them wrote is seen by all.
  void barrier(int thread);

  // Joins the threads; runs are not allowed afterwards. Twice is harmless.
  void close();

 private:
  struct alignas(64) Word {
    std::atomic<uint32_t> value{0};
  };
  struct alignas(64) Waiter {
    SpinWait spin;
  };

  void work(int thread);

  const int num_threads_;
  std::mutex run_mutex_;
  Body body_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> is_closing_{false};
  Word epoch_;    // counts runs: workers wait for it to change
  Word arrived_;  // threads at the barrier
  Word phase_;    // counts barriers
  std::vector<Waiter> waiters_;
  std::vector<std::thread> threads_;
};

}  // namespace roost
