// Where a step's time goes, as one thread sees it: it works on a phase of an op, then waits for others.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace roost {

// What a phase is, for whoever reads the times.
struct PhaseLabel {
  std::string name;
  int64_t weight_bytes = 0;  // read from the matrix, once a step
  int64_t row_macs = 0;      // multiply-adds for each row
};

class Profile {
 public:
  struct Times {
    int64_t count = 0;
    int64_t worked_ns = 0;
    int64_t waited_ns = 0;
  };

  explicit Profile(size_t num_phases) : phases_(num_phases) {}

  // In this order, once a run: `start`, `entered`, then for each phase `begin`, `arrive` when there
  // is no more work for this thread, and `leave` when the others have done theirs.
  void start() { mark_ = Clock::now(); }
  void entered() {
    ++entry_.count;
    entry_.waited_ns += lap();
  }
  void begin(size_t phase) { at_ = phase; }
  void arrive() { phases_[at_].worked_ns += lap(); }
  void leave() {
    ++phases_[at_].count;
    phases_[at_].waited_ns += lap();
  }

  // From the start of a run to the entry of this thread.
  const Times& entry() const { return entry_; }
  const std::vector<Times>& phases() const { return phases_; }

 private:
  using Clock = std::chrono::steady_clock;

  // Nanoseconds since this was last asked.
  int64_t lap() {
    const Clock::time_point now = Clock::now();
    const Clock::duration passed = now - mark_;
    mark_ = now;
    return std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count();
  }

  Times entry_;
  std::vector<Times> phases_;
  size_t at_ = 0;
  Clock::time_point mark_;
};

}  // namespace roost
