// Ctrl-C, a kill and a lost terminal as requests: the first SIGINT, SIGTERM or SIGHUP asks for a clean stop,
// the second kills as usual.
#pragma once

namespace h3s::cli {

// Thrown where a request is noticed.
struct Interrupted {
  int signal;
  int exit_code() const { return 128 + signal; }  // as shells report it
};

// Takes the three signals while it lives, but for those the program was started to ignore (nohup). One at a
// time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // Throws Interrupted after one of them.
  static void check();
};

}  // namespace h3s::cli
