// An op on the device at a shape: its last rows are checked against the definition on the host, then it is
// timed.
//
// Rows do not look at each other, so the definition runs on the rows sampled alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device_memory.h"

namespace h3s::bench {

struct Operand {
  enum class Role {
    kInput,   // a row of row_bytes a token
    kShared,  // row_bytes in all, the same for every row
    kOutput,  // as kInput; poisoned before the checked call
    kInOut,
  };
  Role role = Role::kInput;
  std::int64_t row_bytes = 0;
  Fill fill = Fill::kBf16;  // of outputs: their type, for comparing by error
  std::int64_t planes = 1;  // outputs by head: [planes][rows][row_bytes]
};

struct OpCase {
  Row row;  // as it will stand in the result
  std::int64_t rows = 0;
  std::vector<Operand> operands;
  // The op on `rows` rows of the operands, in their order.
  std::function<void(kernels::Backend&, const std::vector<void*>&, std::int64_t rows)> run;
  // 0: the definition's bits. Else the largest relative RMS difference of each output, where the device sums
  // in an order of its own.
  double tolerance = 0;
};

// Throws Error(kInternal) when a sampled row is not as the definition has it. `theirs` may be null; see
// Context::measure.
void run_case(Context& context, const OpCase& c, const std::function<void()>& theirs = nullptr);

}  // namespace h3s::bench
