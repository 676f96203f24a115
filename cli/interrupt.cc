#include "interrupt.h"

#include <signal.h>

namespace h3s::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

volatile sig_atomic_t requested = 0;  // the signal

void set_default(int signal) {
  struct sigaction now {};
  if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) ::signal(signal, SIG_DFL);
}

void request(int signal) {
  requested = signal;
  for (const int each : kSignals) set_default(each);  // the second one has its usual effect
}

void take(int signal) {
  struct sigaction before {};
  if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = request;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  requested = 0;
  for (const int signal : kSignals) take(signal);
}

InterruptGuard::~InterruptGuard() {
  for (const int signal : kSignals) set_default(signal);
}

void InterruptGuard::check() {
  if (requested != 0) throw Interrupted{requested};
}

}  // namespace h3s::cli
