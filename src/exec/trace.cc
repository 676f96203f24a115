#include "exec/trace.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace h3s::exec {
namespace {

constexpr std::size_t kWriteBytes = 1 << 20;  // events gathered before they are written
constexpr std::array<const char*, kernels::kNumQueues> kQueueNames{"compute", "upload", "download"};

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump();
}

}  // namespace

Trace::Trace(const std::string& path) : file_(path) {
  buffered_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (std::size_t i = 0; i < kQueueNames.size(); ++i)
    append(fmt::format(R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":"{} queue"}}}})",
                       i, kQueueNames[i]));
}

double Trace::microseconds(Clock::time_point time) const {
  return std::chrono::duration<double, std::micro>(time - begin_).count();
}

void Trace::append(const std::string& event) {
  if (!std::exchange(first_, false)) buffered_ += ",\n";
  buffered_ += event;
  if (buffered_.size() >= kWriteBytes) write_buffered();
}

void Trace::write_buffered() noexcept {
  try {
    if (failure_.empty()) file_.write(buffered_.data(), buffered_.size());
  } catch (const std::exception& e) {
    failure_ = e.what();
  }
  buffered_.clear();
}

// Lives overlap in any order: asynchronous slices, one for each serial number.
void Trace::memory(const mem::MemoryEvent& event) {
  const std::lock_guard lock(mutex_);
  const double now = microseconds(Clock::now());
  const char* space = mem::space_name(event.space);
  const bool begins = event.kind == mem::MemoryEvent::Kind::kAllocate;
  append(fmt::format(
      R"({{"ph":"{}","cat":"{}","id":{},"name":{},"pid":1,"tid":0,"ts":{:.3f},"args":{{"bytes":{},"occupied_bytes":{},"arena_offset":{}}}}})",
      begins ? 'b' : 'e', space, event.serial, quoted(event.tag), now, event.bytes,
      mem::occupied_bytes(event.bytes),
      event.arena_offset < 0 ? "null" : std::to_string(event.arena_offset)));
  append(fmt::format(R"({{"ph":"C","name":"{} bytes","pid":1,"ts":{:.3f},"args":{{"held":{}}}}})", space, now,
                     event.held_bytes));
  append(fmt::format(
      R"({{"ph":"C","name":"{} bytes taken from the system","pid":1,"ts":{:.3f},"args":{{"taken":{}}}}})",
      space, now, event.reserved_bytes));
}

void Trace::span(kernels::Queue queue, const char* name, Clock::time_point begin, const std::string& args) {
  const std::lock_guard lock(mutex_);
  if (num_spans_++ >= kMostSpans) return;
  const double start = microseconds(begin);
  append(fmt::format(R"({{"ph":"X","name":"{}","pid":1,"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{}}})", name,
                     static_cast<int>(queue), start, microseconds(Clock::now()) - start, args));
}

void Trace::finish() {
  const std::lock_guard lock(mutex_);
  buffered_ += fmt::format("\n],\"otherData\":{{\"calls\":{},\"calls_drawn\":{}}}}}\n", num_spans_,
                           std::min(num_spans_, kMostSpans));
  write_buffered();
  if (!failure_.empty()) fail(Status::kIo, "{}", failure_);
  file_.commit();
}

void TracingBackend::copy(const kernels::Copy2d& copy, kernels::Queue queue) {
  const auto begin = Trace::Clock::now();
  inner().copy(copy, queue);
  trace_.span(queue, "copy", begin, fmt::format(R"({{"bytes":{}}})", copy.rows * copy.row_bytes));
}

void TracingBackend::op(const kernels::OpCall& call, kernels::RunOp run) {
  const auto begin = Trace::Clock::now();
  run();
  trace_.span(kernels::Queue::kCompute, call.name, begin, fmt::format(R"({{"rows":{}}})", call.rows));
}

}  // namespace h3s::exec
