#include "threads.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "checks.h"

namespace roost {
namespace {

// Without atomics on the data: a phase that ends too early shows as a wrong sum, and under TSan as a
// race.
struct Relay {
  ThreadPool* pool;
  std::vector<Claims> phases;
  std::vector<int64_t> from, to;
};

// In each phase every slot gets its neighbour's number and one more.
void pass_on(void* context, int thread) {
  Relay& relay = *static_cast<Relay*>(context);
  const auto n = static_cast<int64_t>(relay.from.size());
  for (size_t phase = 0; phase < relay.phases.size(); ++phase) {
    const std::vector<int64_t>& from = phase % 2 == 0 ? relay.from : relay.to;
    std::vector<int64_t>& to = phase % 2 == 0 ? relay.to : relay.from;
    int64_t num_mine = 0;
    for (int64_t i; (i = relay.phases[phase].take(1)) < n; ++num_mine) {
      to[static_cast<size_t>(i)] = from[static_cast<size_t>((i + 1) % n)] + 1;
    }
    if (!relay.pool->finish(thread, relay.phases[phase], num_mine, n)) return;
  }
}

void every_thread_sees_what_the_others_wrote() {
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    ThreadPool pool(num_threads);
    Relay relay{&pool, std::vector<Claims>(200), std::vector<int64_t>(7), std::vector<int64_t>(7)};
    for (int run = 1; run <= 20; ++run) {
      for (Claims& phase : relay.phases) phase.reset();
      pool.run(pass_on, &relay);
      for (const int64_t slot : relay.from) CHECK(slot == 200 * run);
    }
  }
}

// Nobody waits for a thread that has no piece, and such a thread touches nothing of a run that is over.
void a_run_ends_without_those_that_come_late() {
  ThreadPool pool(4);
  for (int run = 0; run < 2000; ++run) {
    auto relay = std::make_unique<Relay>(Relay{&pool, std::vector<Claims>(3), {1, 2}, {0, 0}});
    pool.run(pass_on, relay.get());
    CHECK(relay->to[0] + relay->to[1] == 3 + 2 * 3);
  }
}

// Three pieces that wait for each other: each needs a thread of its own.
struct Waking {
  ThreadPool* pool;
  Claims* pieces;
  std::atomic<int>* count;
};

void wake(void* context, int thread) {
  const Waking& waking = *static_cast<Waking*>(context);
  int64_t num_mine = 0;
  for (; waking.pieces->take(1) < 3; ++num_mine) {
    const int all = waking.count->load() / 3 * 3 + 3;
    waking.count->fetch_add(1);
    while (waking.count->load() < all) std::this_thread::yield();
  }
  waking.pool->finish(thread, *waking.pieces, num_mine, 3);
}

void threads_that_slept_wake_up() {
  ThreadPool pool(3);
  std::atomic<int> count{0};
  for (int run = 0; run < 5; ++run) {
    // Longer than any spinning: the workers sleep by now.
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    Claims pieces;
    Waking waking{&pool, &pieces, &count};
    pool.run(wake, &waking);
    CHECK(count.load() == 3 * (run + 1));
  }
}

void callers_take_turns() {
  ThreadPool pool(2);
  int64_t total = 0;  // only thread 0 of a run touches it, and runs do not overlap
  const auto add = [&] {
    for (int i = 0; i < 200; ++i) {
      pool.run(
          [](void* c, int thread) {
            if (thread == 0) *static_cast<int64_t*>(c) += 1;
          },
          &total);
    }
  };
  std::thread other(add);
  add();
  other.join();
  CHECK(total == 400);
}

void a_closed_pool_refuses() {
  ThreadPool pool(2);
  pool.close();
  pool.close();
  bool has_thrown = false;
  try {
    pool.run([](void*, int) {}, nullptr);
  } catch (const std::logic_error&) {
    has_thrown = true;
  }
  CHECK(has_thrown);
  for (int i = 0; i < 50; ++i) const ThreadPool brief(3);  // joined before it ever ran
}

}  // namespace

void test_threads() {
  every_thread_sees_what_the_others_wrote();
  a_run_ends_without_those_that_come_late();
  threads_that_slept_wake_up();
  callers_take_turns();
  a_closed_pool_refuses();
}

}  // namespace roost
