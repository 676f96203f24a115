// Ctrl-C as a request: the first SIGINT asks for a clean stop, the second kills as usual.
#pragma once

namespace h3s::cli {

// Thrown where a request is noticed.
struct Interrupted {};

// Takes SIGINT while it lives. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // Throws Interrupted after a SIGINT.
  static void check();
};

}  // namespace h3s::cli
