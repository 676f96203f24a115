#include "interrupt.h"

#include <signal.h>

namespace h3s::cli {
namespace {

volatile sig_atomic_t requested = 0;

void request(int) {
  requested = 1;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  requested = 0;
  struct sigaction action {};
  action.sa_handler = request;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // the second signal has its usual effect
  ::sigaction(SIGINT, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  ::signal(SIGINT, SIG_DFL);
}

void InterruptGuard::check() {
  if (requested != 0) throw Interrupted{};
}

}  // namespace h3s::cli
