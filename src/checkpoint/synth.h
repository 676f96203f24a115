// Synthetic checkpoints with the key layout of real ones, written in bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "spec/model_spec.h"

namespace h3s::checkpoint {

struct SynthOptions {
  spec::ModelSpec spec;
  WeightFormat format = WeightFormat::kBF16;  // or a quantised one: of the four linears of every block
  std::uint64_t seed = 0;
  std::string prefix;  // of every key; the values do not depend on it
  int threads = 2;     // the bytes do not depend on it
};

// Bytes of tensor data written so far and in all; called from the calling thread after every chunk.
using SynthProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

// Total bytes of the file's tensors.
std::uint64_t synthetic_data_bytes(const SynthOptions& options);

// Writes the file under `path` whole or not at all. Memory: about 10 MiB a thread. Throws
// Error(kInvalidArgument) for sizes no network has, before the file is created, and Error(kIo).
void write_synthetic_checkpoint(const std::string& path, const SynthOptions& options,
                                const SynthProgress& progress);

}  // namespace h3s::checkpoint
