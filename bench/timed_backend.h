// A backend that stamps the time around every op of another one.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/forwarding_backend.h"

namespace h3s::bench {

class TimedBackend final : public kernels::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  // Ops between the two are timed; what passes between two ops counts to the second. Milliseconds of the
  // compute queue by op, those of linear layers apart: "linear_int8 7168x5376" is n x k.
  void start();
  std::map<std::string, double> stop();

 protected:
  void op(const kernels::OpCall& call, kernels::RunOp run) override;

 private:
  void done(const std::string& op);

  bool timing_ = false;
  std::vector<std::pair<std::string, kernels::Stamp>> stamps_;  // when each op was done
};

}  // namespace h3s::bench
