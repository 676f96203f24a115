// A run as a trace that chrome://tracing and Perfetto read: every buffer as a slice with its bytes and its
// offset in the arena, bytes of each space as counters, ops and copies as the host calls them.
#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include "io/output_file.h"
#include "kernels/forwarding_backend.h"
#include "mem/accountant.h"

namespace h3s::exec {

// The JSON object form of the trace event format; times in microseconds since the Trace began. Thread-safe.
class Trace {
 public:
  // Claims the file: it appears under `path` when finish() was called. Throws Error(kIo).
  explicit Trace(const std::string& path);

  void memory(const mem::MemoryEvent& event);

  // A call that began at `begin` and ends now, on the line of a queue. `args` is a JSON object. After
  // kMostSpans calls are left out: one step has shown them all.
  using Clock = std::chrono::steady_clock;
  void span(kernels::Queue queue, const char* name, Clock::time_point begin, const std::string& args);

  // Throws Error(kIo) for the first write that failed, if one did: until here a full disk disturbs no run.
  void finish();

  static constexpr std::int64_t kMostSpans = 200'000;  // some 30 MB

 private:
  double microseconds(Clock::time_point time) const;
  void append(const std::string& event);
  void write_buffered() noexcept;

  std::mutex mutex_;
  io::OutputFile file_;
  std::string buffered_;
  std::string failure_;  // of the first write that failed
  bool first_ = true;
  std::int64_t num_spans_ = 0;
  const Clock::time_point begin_ = Clock::now();
};

// Passes everything on and draws it. On a device that defers work, a span is the time of the call.
class TracingBackend final : public kernels::ForwardingBackend {
 public:
  TracingBackend(kernels::Backend& inner, Trace& trace) : ForwardingBackend(inner), trace_(trace) {}
  void copy(const kernels::Copy2d& copy, kernels::Queue queue) override;

 protected:
  void op(const kernels::OpCall& call, kernels::RunOp run) override;

 private:
  Trace& trace_;
};

}  // namespace h3s::exec
