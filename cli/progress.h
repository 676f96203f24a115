// Progress on stderr. Of a sampling run: a bar that redraws itself on a terminal, elsewhere a line a step and
// at most one every ten seconds in between.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace h3s::cli {

// "1:02:03", "4:05".
std::string format_duration(double seconds);

class Progress {
 public:
  Progress(std::int64_t steps_done, std::int64_t num_steps);
  ~Progress();  // ends the bar's line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void block_done(std::int64_t blocks_done, std::int64_t num_blocks);
  void step_done();

  double seconds() const;           // since construction
  double seconds_per_step() const;  // of the part of this run that is done; 0 before the first block

 private:
  double position() const;  // in steps, blocks as fractions
  std::string text() const;
  void draw();

  using Clock = std::chrono::steady_clock;
  const bool terminal_;
  const std::int64_t first_step_, num_steps_;
  std::int64_t step_, blocks_done_ = 0, num_blocks_ = 1;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_drawn_ = start_;
};

// Of a file being written: share, rate of the whole run and time left, in one line that is renewed on a
// terminal and comes every ten seconds elsewhere.
class ByteProgress {
 public:
  void operator()(std::uint64_t done_bytes, std::uint64_t total_bytes);

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_ = on_terminal();
  Clock::time_point start_ = Clock::now(), last_ = start_;
  static bool on_terminal();
};

}  // namespace h3s::cli
