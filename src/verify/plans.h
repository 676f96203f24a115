// Lists of plans that must all give the same bits.
#pragma once

#include <string>
#include <vector>

#include "exec/dials.h"

namespace h3s::verify {

struct NamedPlan {
  exec::Dials dials;
  int threads = 1;
  std::string describe() const;  // "flat g=1 q=64 kv=65 mlp=127 head=1, 3 threads"
};

// "few": three plans, one a schedule. "some": eight. "all": every schedule x chunk sizes with tails of
// 1, 63, 64, 65, 127, 129, 259 rows x head groups x thread counts, at least 24.
std::vector<NamedPlan> plan_list(const std::string& name);

}  // namespace h3s::verify
