// A test binary without a framework: each check prints where it failed, and the exit status says.
#include "checks.h"

int main() {
  roost::test_threads();
  roost::test_program();
  return roost::num_failures() == 0 ? 0 : 1;
}
