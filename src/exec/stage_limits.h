// What a stage does when the device has no memory for it after all: the same rows in smaller pieces.
//
// A kernel may need memory that no plan sees: code loaded at its first launch, local memory, a driver's own
// buffers. When a launch is refused for that, the piece of rows it was for is tried again at half its size,
// and so are all later ones of that stage in the session. Rows do not depend on their company, so no bit
// changes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "base/error.h"
#include "exec/dials.h"

namespace h3s::exec {

// Stages that work on chunks of rows; each is bounded by one dial.
enum class Stage : int {
  kProject,  // kv_chunk: embedding, q, k and v
  kAttend,   // q_chunk
  kMlp,      // mlp_chunk: out_proj, MLP and their residuals
  kHeads,    // head_chunk: output heads
};
inline constexpr int kNumStages = 4;

class StageLimits {
 public:
  static constexpr std::int64_t kFewestRows = 256;  // a stage that fails with these fails for good

  // `warn` is called with one line each time a stage goes on with smaller pieces.
  explicit StageLimits(std::function<void(const std::string&)> warn = {}) : warn_(std::move(warn)) {
    most_rows_.fill(INT64_MAX);
  }

  // fn(first, count) for consecutive pieces of rows [0, rows): normally for all at once. A piece that throws
  // Error(kOverBudget) is tried again with fewer rows, so it must either complete or have changed nothing
  // that another attempt does not write again: an update in place is its last op. Throws Error(kOverBudget)
  // when a piece of kFewestRows or less fails.
  template <typename Fn>
  void run(Stage stage, std::int64_t rows, Fn&& fn) {
    for (std::int64_t first = 0; first < rows;) {
      const std::int64_t count = std::min(most_rows(stage), rows - first);
      try {
        fn(first, count);
        first += count;
      } catch (const Error& error) {
        shrink(stage, count, error);
      }
    }
  }

  // The dials with what has been learned.
  Dials applied_to(Dials dials) const;

 private:
  std::int64_t& most_rows(Stage stage) { return most_rows_[static_cast<std::size_t>(stage)]; }
  std::int64_t most_rows(Stage stage) const { return most_rows_[static_cast<std::size_t>(stage)]; }
  void shrink(Stage stage, std::int64_t failed_rows, const Error& error);  // called while handling `error`

  std::array<std::int64_t, kNumStages> most_rows_;
  std::function<void(const std::string&)> warn_;
};

}  // namespace h3s::exec
