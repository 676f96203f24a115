// Runs a long sequence inside a budget and proves it: sampled rows of the last block against a float32
// recompute, planned against measured bytes, seconds a block against attention alone. One JSON file, written
// anew after each stage so that what was found outlives a failure.
//
// How far bf16 and quantised activations may be from float32 is not guessed: a short job of the same model is
// recomputed in full, every row, and the long one may be off by no more than kSlack times its worst row.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>

#include "base/bytes.h"
#include "cli/log.h"
#include "cli/memory_watch.h"
#include "exec/block_recompute.h"
#include "exec/long_job.h"

namespace h3s::test {
namespace {

// Errors of one row are relative to what the block adds to it.
//
// The short job itself: quantising a rotated row of some thousand values to 8 bits gives steps of 4 sigma /
// 127, so an error of 4 / 127 / sqrt(12) = 0.9 % of the row; each branch has two such inputs in a chain (the
// MLP's second is a product of two), which makes some 2 %; bf16 roundings of 2^-9 each, that of x twice among
// them, add less.
constexpr double kMostShortError = 0.05;
constexpr double kSlack = 2;
// Attention over many keys adds little to a row, and keys left out less than those errors. But what they
// would change is known, and errors have no reason to point that way: see Comparison::pull().
constexpr double kMostPull = 0.5;
constexpr std::int64_t kSampledRows = 64;

struct Options {
  std::string device = "cpu", model, short_inputs, vram, calibration, json;
  std::vector<std::string> inputs;
  std::string check_memory = "16GiB";
};

struct RowErrors {
  double worst = 0, mean = 0;
  std::int64_t worst_row = 0;
  nlohmann::json json() const { return {{"worst", worst}, {"mean", mean}, {"worst_row", worst_row}}; }
};

struct Pull {
  double value = 0, standard_error = 0;
  double at_most() const { return std::abs(value) + 3 * standard_error; }
  nlohmann::json json() const { return {{"value", value}, {"standard_error", standard_error}}; }
};

// The session's rows against those recomputed: with every key, and with some left out.
class Comparison {
 public:
  Comparison(const CapturedBlock& block, std::int64_t columns, std::vector<float> exact,
             std::vector<float> without)
      : block_(block), columns_(columns), exact_(std::move(exact)), without_(std::move(without)) {}

  // |ours - exact| / |exact - input| in the Euclidean norm, of each row.
  RowErrors errors(const std::vector<BF16>& ours) const {
    RowErrors errors;
    for (std::size_t i = 0; i < block_.rows.size(); ++i) {
      const double error = row_error(ours, i);
      errors.mean += error / static_cast<double>(block_.rows.size());
      if (error <= errors.worst) continue;
      errors.worst = error;
      errors.worst_row = block_.rows[i];
    }
    return errors;
  }

  // How far the rows lie on the way from `exact` to `without`: 0 where every key was attended to, 1 where
  // those keys were left out. The standard error is that of independent rows.
  Pull pull() const {
    double along = 0, square_of_along = 0, way = 0;
    for (std::size_t i = 0; i < block_.rows.size(); ++i) {
      double row_along = 0;
      for (std::size_t at = begin(i); at < begin(i + 1); ++at) {
        const double step = double{without_[at]} - exact_[at];
        row_along += (double{to_float(block_.output[at])} - exact_[at]) * step;
        way += step * step;
      }
      along += row_along;
      square_of_along += row_along * row_along;
    }
    return {along / way, std::sqrt(square_of_along) / way};
  }

 private:
  std::size_t begin(std::size_t row) const { return row * static_cast<std::size_t>(columns_); }

  double row_error(const std::vector<BF16>& ours, std::size_t i) const {
    double error = 0, added = 0;
    const BF16* input = block_.input.as<BF16>() + block_.rows[i] * columns_;
    for (std::size_t at = begin(i); at < begin(i + 1); ++at, ++input) {
      const double off = double{to_float(ours[at])} - exact_[at];
      const double update = double{exact_[at]} - to_float(*input);
      error += off * off;
      added += update * update;
    }
    const double relative = std::sqrt(error / added);
    return std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative;
  }

  const CapturedBlock& block_;
  std::int64_t columns_;
  std::vector<float> exact_, without_;
};

class Proof {
 public:
  explicit Proof(const Options& options)
      : options_(options),
        where_(backend::parse_device(options.device, 0)),
        checkpoint_(checkpoint::Checkpoint::open(options.model)),
        books_(backend::make_allocator(where_)) {
    if (!where_.on_cpu()) others_ = cli::MemoryWatch(where_).json();
    report_["device"] = backend::describe(where_);
    report_["blocks_of_the_model"] = checkpoint_.spec().layers;
    report_["jobs"] = nlohmann::json::array();
  }

  // Stops at the first job that fails.
  bool run() {
    const double worst = check_short();
    bool passed = worst < kMostShortError;
    for (const std::string& inputs : options_.inputs) {
      if (!passed) break;
      report_["jobs"].emplace_back();
      passed = check_long(inputs, kSlack * worst);
    }
    report_["passed"] = passed;
    store();
    return passed;
  }

 private:
  nlohmann::json& job_report() { return report_["jobs"].back(); }

  // Kernels that the jobs before had loaded are this process's, and were not to be seen as such any more.
  void count_loaded_kernels(nlohmann::json& seen) const {
    if (!others_.is_object() || others_["device_bytes"].is_null()) return;
    const auto bytes = [](const nlohmann::json& value) { return value.get<std::int64_t>(); };
    seen["device_bytes"] = bytes(seen["device_used_bytes"]) -
                           (bytes(others_["device_used_bytes"]) - bytes(others_["device_bytes"]));
  }

  // Every row of the short job; the worst error.
  double check_short() {
    LongJob job({where_, {}, options_.calibration}, checkpoint_, options_.short_inputs);
    std::vector<std::int64_t> all(static_cast<std::size_t>(job.layout().tokens()));
    std::iota(all.begin(), all.end(), 0);
    nlohmann::json unused;
    const CapturedBlock block = job.run(all, books_, unused);
    const RowErrors errors = recompute(job, block).errors(block.output);
    report_["short_job"] = {{"tokens", job.layout().tokens()}, {"error", errors.json()}};
    cli::log("short job, {} tokens: errors of rows {}", job.layout().tokens(), errors.json().dump());
    store();
    return errors.worst;
  }

  bool check_long(const std::string& inputs, double bound) {
    LongJob job({where_, {parse_bytes(options_.vram)}, options_.calibration}, checkpoint_, inputs);
    nlohmann::json& report = job_report();
    report = job.plan_json();
    report["tokens"] = job.layout().tokens();
    cli::log("{} tokens, {}", job.layout().tokens(), job.plan().dials.describe());
    store();
    const CapturedBlock block = job.run(
        sample_rows(job.layout(), checkpoint_.spec(), job.plan().dials, kSampledRows), books_, report);
    count_loaded_kernels(report["seen"]);
    store();
    time_attention(job);
    return check_rows(job, block, bound);
  }

  bool check_rows(const LongJob& job, const CapturedBlock& block, double bound) {
    const auto begin = std::chrono::steady_clock::now();
    const Comparison comparison = recompute(job, block);
    const RowErrors errors = comparison.errors(block.output), of_spoiled = comparison.errors(spoiled(block));
    const Pull pull = comparison.pull();
    nlohmann::json& check = job_report()["check"];
    check = {{"block", block.block_idx},
             {"rows", block.rows},
             {"error", errors.json()},
             {"bound", bound},
             {"error_if_one_row_were_another", of_spoiled.json()},
             {"pull_of_leaving_out_an_eighth_of_the_keys", pull.json()},
             {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()},
             {"rows_within_bound", errors.worst <= bound},
             {"sees_a_wrong_row", of_spoiled.worst > bound},
             {"every_key_attended_to", pull.at_most() < kMostPull}};
    cli::log("check: {}", check.dump());
    store();
    return errors.worst <= bound && of_spoiled.worst > bound && pull.at_most() < kMostPull;
  }

  Comparison recompute(const LongJob& job, const CapturedBlock& block) {
    const std::int64_t tokens = job.layout().tokens();
    const std::unique_ptr<kernels::Backend> backend = backend::make_backend(where_, books_);
    BlockRecompute exact(*backend, books_,
                         {.checkpoint = checkpoint_,
                          .layout = job.layout(),
                          .timesteps = block.timesteps,
                          .block_idx = block.block_idx,
                          .x = block.input.as<BF16>()},
                         parse_bytes(options_.check_memory));
    std::vector<std::vector<float>> rows = exact.run(block.rows, {tokens, tokens - tokens / 8});
    return {block, checkpoint_.spec().hidden, std::move(rows[0]), std::move(rows[1])};
  }

  // The middle one of the rows becomes the one before it.
  std::vector<BF16> spoiled(const CapturedBlock& block) const {
    std::vector<BF16> output = block.output;
    const auto columns = static_cast<std::ptrdiff_t>(checkpoint_.spec().hidden);
    const auto row = output.begin() + static_cast<std::ptrdiff_t>(block.rows.size() / 2) * columns;
    std::copy(row - columns, row, row);
    return output;
  }

  void time_attention(const LongJob& job) {
    const std::unique_ptr<kernels::Backend> backend = backend::make_backend(where_, books_);
    const double alone = attention_alone_seconds(*backend, books_, checkpoint_.spec(), job.layout().tokens(),
                                                 job.plan().dials);
    nlohmann::json& report = job_report();
    report["attention_alone_seconds_per_block"] = alone;
    for (nlohmann::json& block : report["blocks"])
      block["seconds_over_attention_alone"] = block["seconds"].get<double>() / alone;
    cli::log("{:.2f} s a step, attention alone {:.2f} s a block; {}",
             report["seconds_per_step"].get<double>(), alone, report["blocks"].dump());
    store();
  }

  void store() const {
    if (!options_.json.empty()) std::ofstream(options_.json) << cli::json_text(report_, 1);
  }

  const Options& options_;
  backend::DeviceChoice where_;
  checkpoint::Checkpoint checkpoint_;
  mem::Accountant books_;  // of the check, which no budget binds
  nlohmann::json report_;
  nlohmann::json others_;  // the driver's figures before any job; null on the CPU
};

}  // namespace
}  // namespace h3s::test

int main(int argc, char** argv) {
  h3s::test::Options options;
  CLI::App app("Run a long sequence inside a budget and check sampled rows against a float32 recompute");
  app.add_option("--device", options.device, "cpu or cuda:N")->capture_default_str();
  app.add_option("-m,--model", options.model, "Checkpoint, safetensors")->required();
  app.add_option("-i,--inputs", options.inputs, "Inputs of the long jobs, safetensors, one or more")
      ->required();
  app.add_option("--short-inputs", options.short_inputs,
                 "Inputs of a job short enough to recompute every row: some 2000 tokens")
      ->required();
  app.add_option("--vram", options.vram, "Budget of device memory, for instance 8GiB")->required();
  app.add_option("--check-memory", options.check_memory,
                 "Device memory for the keys and values of the recompute, after the run")
      ->capture_default_str();
  app.add_option("--calibration", options.calibration, "Rates of this machine; default as `h3stream run`");
  app.add_option("--json", options.json, "File for the result; default none");
  CLI11_PARSE(app, argc, argv);
  try {
    return h3s::test::Proof(options).run() ? 0 : 1;
  } catch (const std::exception& error) {
    h3s::cli::log("long_job: {}", error.what());
    return 2;
  }
}
