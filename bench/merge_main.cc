// How long a block takes to load with a LoRA merged into it: `merge_bench MODEL LORA [LOADS]`, one JSON
// object on stdout. The weights of block 0 go to memory that is there already, as they do in a run.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "exec/weight_loader.h"
#include "mem/accountant.h"
#include "peak.h"

namespace h3s::bench {
namespace {

// Seconds of each load of block 0 after a first one, which also reads the files.
std::vector<double> load_seconds(const checkpoint::Checkpoint& checkpoint, int loads) {
  const exec::WeightLoader bare(checkpoint, DType::kBF16, /*device_is_host=*/false);
  mem::Accountant books(mem::make_heap_allocator());
  const mem::Buffer merge_memory =
      books.allocate(mem::Space::kHost, bare.sizes().merge_bytes, "merging of LoRAs");
  const exec::WeightLoader loader = bare.with_merge_memory(merge_memory.data());
  std::vector<std::byte> slot(static_cast<std::size_t>(loader.sizes().blocks.front()));
  std::vector<double> seconds;
  for (int i = 0; i <= loads; ++i) {
    std::int64_t used = 0;
    const auto start = std::chrono::steady_clock::now();
    loader.load_block("blocks.0", /*adaln=*/true, {slot.data(), slot.data()}, &used);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (i > 0) seconds.push_back(taken.count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

// Operations a second of multiply-adds on registers alone, all threads together.
double peak_operations() {
  constexpr std::int64_t kIterations = 20'000'000;
  const int threads = exec::merging_threads();
  std::vector<double> done(static_cast<std::size_t>(threads));
  const auto start = std::chrono::steady_clock::now();
  in_slices(threads, 1, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      done[static_cast<std::size_t>(i)] = run_float_peak(kIterations);
  });
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return std::accumulate(done.begin(), done.end(), 0.0) / taken.count();
}

int run(const std::string& model, const std::string& lora, int loads) {
  const checkpoint::Checkpoint base = checkpoint::Checkpoint::open(model);
  const std::vector<checkpoint::LoraRequest> requests{{lora, 1.0f}};
  const checkpoint::Checkpoint merged = base.with_loras(requests, checkpoint::LoraMode::kMerge);
  std::int64_t weights = 0, products = 0;
  for (const char* name : {"attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2"}) {
    const std::string layer = fmt::format("blocks.0.{}", name);
    const checkpoint::LinearSource source = base.linear(layer);
    weights += source.n * source.k;
    if (const checkpoint::LoraLayer* changes = merged.lora(layer))
      products += 2 * source.n * source.k * changes->rank();
  }
  const std::vector<double> plain = load_seconds(base, loads), with = load_seconds(merged, loads);
  const auto middle = static_cast<std::size_t>(loads / 2);
  const nlohmann::ordered_json out = {
      {"format", checkpoint::weight_format_name(base.linear("blocks.0.mlp.fc1").format)},
      {"threads", exec::merging_threads()},
      {"loads", loads},
      {"weights", weights},
      {"product_operations", products},
      {"load_seconds", plain[middle]},
      {"merged_load_seconds", with[middle]},
      {"fastest_seconds", with.front()},
      {"slowest_seconds", with.back()},
      {"peak_operations_per_second", peak_operations()},
      {"merge_memory_bytes", exec::WeightLoader(merged, DType::kBF16, false).sizes().merge_bytes}};
  fmt::print("{}\n", out.dump());
  return 0;
}

}  // namespace
}  // namespace h3s::bench

int main(int argc, char** argv) try {
  constexpr int kLoads = 3;
  if (argc != 3 && argc != 4) {
    fmt::print(stderr, "expected MODEL LORA [LOADS]\n");
    return 2;
  }
  const int loads = argc == 4 ? std::atoi(argv[3]) : kLoads;
  return h3s::bench::run(argv[1], argv[2], std::max(1, loads));
} catch (const std::exception& e) {
  fmt::print(stderr, "merge_bench: {}\n", e.what());
  return 1;
}
