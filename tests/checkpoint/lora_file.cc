#include "lora_file.h"

#include <fmt/format.h>

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/dispatch.h"
#include "base/float16.h"
#include "checkpoint/generator.h"
#include "checkpoint/parts.h"
#include "io/safetensors.h"

namespace h3s::test {
namespace {

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t d : shape) count *= d;
  return count;
}

}  // namespace

LoraFile::LoraFile() {
  static int count = 0;
  path_ = (std::filesystem::temp_directory_path() /
           fmt::format("h3s-test-lora-{}-{}.safetensors", ::getpid(), count++))
              .string();
}

LoraFile::~LoraFile() {
  std::remove(path_.c_str());
}

void LoraFile::random(const std::string& key, const std::vector<std::int64_t>& shape, float size,
                      DType dtype) {
  std::vector<float> numbers(static_cast<std::size_t>(elements(shape)));
  checkpoint::TensorGenerator::input(key, 7).values(0, elements(shape), numbers.data());
  for (float& v : numbers) v *= size;
  values(key, shape, std::move(numbers), dtype);
}

void LoraFile::values(const std::string& key, const std::vector<std::int64_t>& shape,
                      std::vector<float> numbers, DType dtype) {
  std::string data(numbers.size() * dtype_size(dtype), '\0');
  dispatch_dtype<float, BF16, F16>(dtype, "test", [&]<typename T>() {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const T value = from_float<T>(numbers[i]);
      std::memcpy(data.data() + i * sizeof value, &value, sizeof value);
    }
  });
  bytes(key, dtype, shape, std::move(data));
}

void LoraFile::bytes(const std::string& key, DType dtype, const std::vector<std::int64_t>& shape,
                     std::string data) {
  tensors_.push_back({key, {dtype, shape, std::move(data)}});
}

void LoraFile::pair(const std::string& module, std::int64_t n, std::int64_t k, std::int64_t rank) {
  random(module + ".lora_A.weight", {rank, k}, 1 / std::sqrt(static_cast<float>(k)));
  random(module + ".lora_B.weight", {n, rank}, 0.3f / std::sqrt(static_cast<float>(rank)));
}

void LoraFile::all_layers(const spec::ModelSpec& spec, std::int64_t rank, const std::string& prefix) {
  for (const checkpoint::Part& part : checkpoint::model_parts(spec))
    if (checkpoint::is_linear(part.kind)) pair(prefix + part.name, part.shape[0], part.shape[1], rank);
}

const std::string& LoraFile::write() {
  std::vector<io::TensorDecl> declared;
  for (const auto& [key, tensor] : tensors_) declared.push_back({key, tensor.dtype, tensor.shape});
  io::SafetensorsWriter writer(path_, declared, metadata);
  for (const auto& [key, tensor] : tensors_) writer.write(tensor.data.data(), tensor.data.size());
  writer.finish();
  return path_;
}

}  // namespace h3s::test
