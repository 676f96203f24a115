// `h3stream calibrate`: measures this machine for the planner.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <vector>

#include "backend/select.h"
#include "base/bytes.h"
#include "base/error.h"
#include "commands.h"
#include "io/output_file.h"
#include "log.h"
#include "machine.h"
#include "plan/rates.h"
#include "values.h"

namespace h3s::cli {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 30;  // of a file that is not in the page cache
constexpr std::size_t kPieceBytes = std::size_t{16} << 20;
// A context larger than this is another program's memory.
constexpr std::int64_t kMostContextBytes = std::int64_t{2} << 30;

struct Arguments {
  std::string device = "auto", output, file;
  int threads = 0;
  bool json = false;
};

// Bytes a second of reading the head of a file whose pages were dropped from the cache.
double cold_read_rate(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(Status::kIo, "{}: could not be opened", path);
  ::posix_fadvise(fd, 0, static_cast<off_t>(kReadBytes), POSIX_FADV_DONTNEED);
  std::vector<char> piece(kPieceBytes);
  std::size_t done = 0;
  const auto start = std::chrono::steady_clock::now();
  while (done < kReadBytes) {
    const ssize_t count = ::read(fd, piece.data(), piece.size());
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ::close(fd);
  if (done < kPieceBytes)
    fail(Status::kBadFile, "{}: expected a file of at least {} to read from, got {} bytes", path,
         format_bytes(kPieceBytes), done);
  return static_cast<double>(done) / seconds;
}

plan::Calibration measure(const Arguments& a, const backend::DeviceChoice& device) {
  mem::Accountant accountant(backend::make_allocator(device));
  const std::unique_ptr<kernels::Backend> engine = backend::make_backend(device, accountant);
  plan::Calibration c =
      plan::measure_rates(*engine, accountant, [](const std::string& what) { log("measuring {}", what); });
  c.device = calibration_name(device);
  if (!a.file.empty()) c.file_bytes = cold_read_rate(a.file);
  const std::optional<backend::DeviceState> state = backend::device_state(device);
  if (!state) return c;
  // Everything is loaded now: what is missing and in no book is the driver's, or another program's.
  const std::int64_t missing =
      state->total_bytes - state->free_bytes - accountant.current_bytes(mem::Space::kDevice);
  if (missing > kMostContextBytes)
    log("h3stream: {} of the device are in use elsewhere: measure again when nothing else runs",
        format_bytes(missing));
  c.context_bytes = std::clamp<std::int64_t>(missing, 0, kMostContextBytes);
  return c;
}

std::string tera(double rate) {
  return fmt::format("{:.3g} T/s", rate / 1e12);
}
std::string giga(double rate) {
  return fmt::format("{:.3g} GB/s", rate / 1e9);
}

std::string linear_text(const plan::LinearRate& rate) {
  return fmt::format("{}, a call {:.0f} rows and {:.3g} outputs more", tera(rate.ops), rate.extra_rows,
                     rate.extra_outputs);
}

std::string attention_text(const plan::AttentionRate& rate) {
  return fmt::format("{}, a call at least {:.0f} rows", tera(rate.ops), rate.min_rows);
}

std::string table(const plan::Calibration& c) {
  std::string text;
  const auto line = [&](const char* label, const std::string& value) {
    text += fmt::format("{:<16}{}\n", label, value);
  };
  line("device", c.device);
  line("int8 linear", linear_text(c.int8));
  line("bf16 linear", linear_text(c.bf16));
  line("fp32 linear", linear_text(c.f32));
  line("bf16 attention", attention_text(c.attention_bf16));
  line("fp32 attention", attention_text(c.attention_f32));
  line("row ops", fmt::format("{}, {:.2g} us a call", giga(c.row_bytes), c.call_seconds * 1e6));
  line("quantisers", giga(c.quantize_bytes));
  line("copies", fmt::format("{} up, {} down, {:.0f} bytes more a strided row", giga(c.upload_bytes),
                             giga(c.download_bytes), c.copy_row_bytes));
  line("host memory", giga(c.host_bytes));
  line("loading", giga(c.loading_bytes));
  line("merging", fmt::format("{:.3g} G weights/s, products {}", c.merge.weights / 1e9, tera(c.merge.ops)));
  line("file", c.file_bytes > 0 ? giga(c.file_bytes) : "not measured");
  if (c.context_bytes > 0) line("driver", format_bytes(c.context_bytes));
  return text;
}

int run_calibrate(const Arguments& a) {
  const backend::DeviceChoice device = backend::parse_device(a.device, a.threads);
  const std::string path =
      a.output.empty() ? plan::default_calibration_path(calibration_name(device)) : a.output;
  if (path.empty())
    fail(Status::kInvalidArgument,
         "[calibrate] neither XDG_CACHE_HOME nor HOME is set: name a file with --out");
  if (a.output.empty()) std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  io::OutputFile file(path);  // before measuring: a path that cannot be written is refused now
  const plan::Calibration calibration = measure(a, device);
  const std::string text = plan::calibration_text(calibration);
  file.write(text.data(), text.size());
  file.commit();
  log("{}: written", path);
  fmt::print("{}", a.json ? text : table(calibration));
  return 0;
}

}  // namespace

void add_calibrate(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      "calibrate", "Measure this machine for the planner, in under a minute; nothing else should be running");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--device", arguments->device, "auto (a GPU when there is one), cpu or cuda:N")
      ->check(not_empty())
      ->capture_default_str();
  command->add_option("--threads", arguments->threads, "CPU threads; 0 as many as the machine has")
      ->check(whole(0, 1024))
      ->capture_default_str();
  command
      ->add_option("-o,--out", arguments->output,
                   "File to write; default in the user's cache, where `run` and `plan` look")
      ->check(not_empty());
  command
      ->add_option(
          "--read", arguments->file,
          "Also measure reading this file from the disk, for instance a checkpoint; up to 1 GiB of it")
      ->check(not_empty());
  command->add_flag("--json", arguments->json, "Print the file's content instead of a table");
  command->callback([&run, arguments] { run = [arguments] { return run_calibrate(*arguments); }; });
}

}  // namespace h3s::cli
