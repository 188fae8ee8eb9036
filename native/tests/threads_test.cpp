#include "threads.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "checks.h"

namespace roost {
namespace {

// Without atomics on the data: a missing barrier shows as a wrong sum, and under TSan as a race.
struct Relay {
  ThreadPool* pool;
  int rounds;
  std::vector<int64_t> slots;
  bool is_right = true;
};

void pass_on(void* context, int thread) {
  Relay& relay = *static_cast<Relay*>(context);
  const auto n = static_cast<int>(relay.slots.size());
  for (int round = 0; round < relay.rounds; ++round) {
    const int64_t neighbour = relay.slots[static_cast<size_t>((thread + 1) % n)];
    relay.pool->barrier(thread);
    relay.slots[static_cast<size_t>(thread)] = neighbour + 1;
    relay.pool->barrier(thread);
  }
}

void every_thread_sees_what_the_others_wrote() {
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    ThreadPool pool(num_threads);
    Relay relay{&pool, 200, std::vector<int64_t>(static_cast<size_t>(num_threads), 0)};
    for (int run = 1; run <= 20; ++run) {
      pool.run(pass_on, &relay);
      for (const int64_t slot : relay.slots) CHECK(slot == 200 * run);
    }
  }
}

void threads_that_slept_wake_up() {
  ThreadPool pool(3);
  std::atomic<int> count{0};
  for (int run = 0; run < 5; ++run) {
    // Longer than any spinning: the workers sleep by now.
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    pool.run([](void* c, int) { static_cast<std::atomic<int>*>(c)->fetch_add(1); }, &count);
  }
  CHECK(count.load() == 15);
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
  threads_that_slept_wake_up();
  callers_take_turns();
  a_closed_pool_refuses();
}

}  // namespace roost
