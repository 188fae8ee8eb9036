// Checks for the C++ tests, which run under the sanitizers.
#pragma once

#include <cstdio>

namespace roost {

void test_threads();
void test_program();

inline int& num_failures() {
  static int count = 0;
  return count;
}

inline void check_that(bool is_met, const char* what, const char* file, int line) {
  if (is_met) return;
  ++num_failures();
  std::fprintf(stderr, "%s:%d: not true: %s\n", file, line, what);
}

}  // namespace roost

#define CHECK(condition) ::roost::check_that((condition), #condition, __FILE__, __LINE__)
