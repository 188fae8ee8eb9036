// The threads that compute: they start once, share the work of a run phase by phase, and sleep when idle.
//
// A phase ends when its pieces are done, not when all threads have come: one that the system lets
// wait, for another program's sake, keeps nobody waiting unless it is in the middle of a piece. It
// finds the others where they are, or the run over.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace roost {

// The pieces of a phase: who comes takes the next ones.
class Claims {
 public:
  void reset() {
    next_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
  }
  // The first of `chunk` pieces that are the caller's now.
  int64_t take(int64_t chunk) { return next_.fetch_add(chunk, std::memory_order_relaxed); }
  // Counts `num_pieces` as done → how many are. Whoever makes it all of them sees what all have done.
  int64_t add_done(int64_t num_pieces) { return done_.fetch_add(num_pieces, std::memory_order_acq_rel) + num_pieces; }

 private:
  alignas(64) std::atomic<int64_t> next_{0};
  std::atomic<int64_t> done_{0};
};

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

// About 50 µs of pause instructions: several times the longest usual wait between two ops of a
// decode step, and still short beside a scheduler's time slice.
constexpr uint32_t kMaxSpins = 2000;

class ThreadPool {
 public:
  using Body = void (*)(void* context, int thread);

  // num_threads ≥ 1, the caller of `run` included.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Runs body(context, thread) on the caller as thread 0, and on every other thread that comes in
  // time; returns when none of them touches `context` any more. So the body must be such that
  // thread 0 alone comes to its end: by pieces that are claimed, and `finish`. One run at a time; a
  // second caller waits. body must not throw. Throws std::logic_error when the pool is closed.
  void run(Body body, void* context);

  // Within a run, which all threads walk through alike: this thread has done `num_mine` pieces of a
  // phase, which has `num_pieces` > 0, and there are no more to be taken. Returns when all are done;
  // what was written by them is seen. False: the run is over, and nothing of it may be touched.
  bool finish(int thread, Claims& claims, int64_t num_mine, int64_t num_pieces);

  // Joins the threads; runs are not allowed afterwards. Twice is harmless.
  void close();

 private:
  struct alignas(64) Word {
    std::atomic<uint32_t> value{0};
  };
  struct alignas(64) Member {
    SpinWait spin{kMaxSpins};
    uint32_t phase = 0;  // phases that this thread has left behind
    // Whether it may touch what belongs to the run. While it waits it does not, so that a run can
    // end without it.
    std::atomic<bool> is_inside{false};
  };

  void work(int thread);
  bool enter(Member& member, uint32_t run);

  const int num_threads_;
  std::mutex run_mutex_;
  Body body_ = nullptr;
  void* context_ = nullptr;
  uint32_t first_phase_ = 0;  // of the run
  std::atomic<bool> is_closing_{false};
  Word run_;    // odd while there is a run; counts up as it begins and ends
  Word phase_;  // counts phases that are done, of all runs
  std::vector<Member> members_;
  std::vector<std::thread> threads_;
};

}  // namespace roost
