// What a backend must offer: the ops, memory, and ordered queues.
//
// Orchestration knows this interface alone. Ops run on the compute queue in the order of the calls; copies
// run on the queue they name. Queues run beside each other; only record/wait order one after another. A
// backend may finish an op before its call returns (the CPU does): then events cost nothing. Buffers handed
// to an op must stay alive until an event recorded after it has been waited for by the host (`sync`). Tables
// in host memory (mod segments) are read during the call.
//
// Ops arrive here with checked arguments (see ops/); a backend only asserts. Errors are thrown as h3s::Error.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/quantize_float.h"
#include "kernels/row_ops.h"
#include "mem/accountant.h"

namespace h3s::kernels {

enum class Queue : int { kCompute = 0, kUpload = 1, kDownload = 2 };
inline constexpr int kNumQueues = 3;

// A point in a queue. Obtained by record(); id 0 is "already passed".
struct Event {
  std::uint64_t id = 0;
};

// A point in a queue whose time of passing will be read, once. Orders nothing.
struct Stamp {
  std::uint64_t id = 0;
};

struct Copy2d {
  void* dst = nullptr;
  std::int64_t dst_pitch_bytes = 0;
  const void* src = nullptr;
  std::int64_t src_pitch_bytes = 0;
  std::int64_t row_bytes = 0;
  std::int64_t rows = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;  // "cpu (2 threads, AVX3_ZEN4)"
  // True when device memory is ordinary host memory: weights may then be used where the file is mapped.
  virtual bool device_is_host() const = 0;

  virtual void copy(const Copy2d& copy, Queue queue) = 0;
  virtual Event record(Queue queue) = 0;
  virtual void wait(Queue queue, Event event) = 0;  // later work of `queue` starts after `event`
  virtual void sync(Event event) = 0;               // the host waits

  // Times, for measuring only. passed_ms: when a stamp's queue came past it, in milliseconds on one clock of
  // this backend; empty, without waiting, until then. The stamp is used up when its time is given; read every
  // one. Here: the host's clock, which is right where an op is finished when its call returns.
  virtual Stamp stamp(Queue) {
    const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
    return {static_cast<std::uint64_t>(now.count())};
  }
  virtual std::optional<double> passed_ms(Stamp stamp) { return static_cast<double>(stamp.id) * 1e-6; }

  virtual void linear(const LinearArgs& args) = 0;
  virtual void linear_int8(const LinearInt8Args& args) = 0;
  virtual void quantize_rows(const QuantizeRowsArgs& args) = 0;
  virtual void swiglu_quantize_rows(const SwigluQuantizeRowsArgs& args) = 0;
  virtual void quantize_float(const QuantizeFloatArgs& args) = 0;
  virtual void abs_max(const AbsMaxArgs& args) = 0;
  virtual void rms_norm(const RmsNormArgs& args) = 0;
  virtual void gated_residual(const GatedResidualArgs& args) = 0;
  virtual void swiglu(const SwigluArgs& args) = 0;
  virtual void silu(const SiluArgs& args) = 0;
  virtual void modulation_table(const ModulationTableArgs& args) = 0;
  virtual void final_modulate(const FinalModulateArgs& args) = 0;
  virtual void rope_table(const RopeTableArgs& args) = 0;
  virtual void qkv_norm_rope(const QkvArgs& args) = 0;
  virtual void attention(const AttentionArgs& args) = 0;
};

}  // namespace h3s::kernels
