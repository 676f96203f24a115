// LoRA files for tests: tensors held in memory, written to a temporary file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "spec/model_spec.h"

namespace h3s::test {

class LoraFile {
 public:
  LoraFile();
  ~LoraFile();  // removes the file
  LoraFile(const LoraFile&) = delete;
  LoraFile& operator=(const LoraFile&) = delete;

  std::map<std::string, std::string> metadata;

  // Random numbers times `size`, an exact function of the key; stored as `dtype`.
  void random(const std::string& key, const std::vector<std::int64_t>& shape, float size,
              DType dtype = DType::kBF16);
  void values(const std::string& key, const std::vector<std::int64_t>& shape, std::vector<float> numbers,
              DType dtype = DType::kF32);
  void bytes(const std::string& key, DType dtype, const std::vector<std::int64_t>& shape, std::string data);

  // A pair MODULE.lora_A.weight [rank, k], MODULE.lora_B.weight [n, rank] whose product is about 0.3 of a
  // weight whose outputs are near 1.
  void pair(const std::string& module, std::int64_t n, std::int64_t k, std::int64_t rank);
  // One for every linear layer of a network.
  void all_layers(const spec::ModelSpec& spec, std::int64_t rank,
                  const std::string& prefix = "diffusion_model.");

  const std::string& write();  // the path

 private:
  struct Tensor {
    DType dtype;
    std::vector<std::int64_t> shape;
    std::string data;
  };
  std::string path_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
};

}  // namespace h3s::test
