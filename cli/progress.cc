#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/bytes.h"
#include "log.h"

namespace h3s::cli {
namespace {

constexpr int kBarWidth = 24;  // with the numbers, under 80 columns
constexpr std::chrono::milliseconds kRedrawEvery{100};
constexpr std::chrono::seconds kLineEvery{10};  // where there is no terminal

std::string bar(double fraction) {
  const auto filled = static_cast<std::size_t>(fraction * kBarWidth);
  return std::string(filled, '#') + std::string(kBarWidth - filled, '.');
}

}  // namespace

std::string format_duration(double seconds) {
  const auto total = static_cast<std::int64_t>(seconds + 0.5);
  const std::int64_t hours = total / 3600, minutes = total / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

Progress::Progress(std::int64_t steps_done, std::int64_t num_steps)
    : terminal_(::isatty(STDERR_FILENO) != 0),
      first_step_(steps_done),
      num_steps_(num_steps),
      step_(steps_done) {}

Progress::~Progress() {
  if (terminal_ && last_drawn_ != start_) write_stderr("\n");
}

double Progress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

double Progress::seconds_per_step() const {
  const double done = position() - static_cast<double>(first_step_);
  return done > 0 ? seconds() / done : 0;
}

void Progress::block_done(std::int64_t blocks_done, std::int64_t num_blocks) {
  blocks_done_ = blocks_done;
  num_blocks_ = num_blocks;
  const Clock::duration pause = terminal_ ? Clock::duration(kRedrawEvery) : Clock::duration(kLineEvery);
  if (Clock::now() - last_drawn_ >= pause) draw();
}

void Progress::step_done() {
  ++step_;
  blocks_done_ = 0;
  draw();
}

std::string Progress::text() const {
  const double pace = seconds_per_step();
  const std::string block = blocks_done_ > 0 ? fmt::format("block {}/{}  ", blocks_done_, num_blocks_) : "";
  return fmt::format("step {}/{}  {}{:.2f} s/step  ETA {}", step_, num_steps_, block, pace,
                     format_duration((static_cast<double>(num_steps_) - position()) * pace));
}

double Progress::position() const {
  return static_cast<double>(step_) + static_cast<double>(blocks_done_) / static_cast<double>(num_blocks_);
}

void Progress::draw() {
  last_drawn_ = Clock::now();
  if (!terminal_) return log("{}", text());
  write_stderr(fmt::format("\r[{}] {}\x1b[K", bar(position() / static_cast<double>(num_steps_)), text()));
}

bool ByteProgress::on_terminal() {
  return ::isatty(STDERR_FILENO) != 0;
}

void ByteProgress::operator()(std::uint64_t done_bytes, std::uint64_t total_bytes) {
  const Clock::time_point now = Clock::now();
  const auto between = terminal_ ? std::chrono::milliseconds(250) : std::chrono::milliseconds(kLineEvery);
  if (now - last_ < between && done_bytes < total_bytes) return;
  last_ = now;
  const double seconds = std::max(std::chrono::duration<double>(now - start_).count(), 1e-3);
  const double rate = static_cast<double>(done_bytes) / seconds;
  const auto left = static_cast<double>(total_bytes - done_bytes);
  write_stderr(fmt::format(
      "{}{:5.1f} %  {} of {}  {:.0f} MB/s  ETA {}   {}", terminal_ ? "\r" : "",
      100.0 * static_cast<double>(done_bytes) / static_cast<double>(std::max<std::uint64_t>(1, total_bytes)),
      format_bytes(static_cast<std::int64_t>(done_bytes)),
      format_bytes(static_cast<std::int64_t>(total_bytes)), rate / 1e6,
      format_duration(left / std::max(rate, 1.0)), terminal_ && done_bytes < total_bytes ? "" : "\n"));
}

}  // namespace h3s::cli
