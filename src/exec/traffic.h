// What crosses between host and device, counted where copies are called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/forwarding_backend.h"

namespace h3s::exec {

// Bytes of one kind of buffer, named by the host side's tag in the books: "weights of a block", "x (residual
// stream)".
struct TrafficLine {
  std::string what;
  std::int64_t up_bytes = 0;    // to the device
  std::int64_t down_bytes = 0;  // from the device
};

struct Traffic {
  std::vector<TrafficLine> lines;  // most bytes first
  std::int64_t up_bytes() const;
  std::int64_t down_bytes() const;
};

// Passes everything on and counts copies by the spaces their two ends lie in. Where the device is the host,
// these are the copies a device would need for what is staged; weights are used where they are mapped.
class TrafficCounter final : public kernels::ForwardingBackend {
 public:
  TrafficCounter(kernels::Backend& inner, const mem::Accountant& books)
      : ForwardingBackend(inner), books_(books) {}

  void copy(const kernels::Copy2d& copy, kernels::Queue queue) override;

  void reset() { counts_.clear(); }
  Traffic traffic() const;  // since reset()

 private:
  struct Count {
    const std::string* what = nullptr;  // null: memory not in the books
    std::int64_t up_bytes = 0, down_bytes = 0;
  };
  Count& count_of(const std::string* what);

  const mem::Accountant& books_;
  std::vector<Count> counts_;
};

}  // namespace h3s::exec
