// Device memory for the chunk tests, and the comparison itself: an op run on all rows, and on chunks of them,
// into poisoned outputs between guards.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/check.h"
#include "backend/cuda/cuda_backend.h"
#include "ops/op_test.h"

namespace h3s::test {

// Device memory that holds `values`.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : OnDevice(static_cast<std::int64_t>(values.size())) {
    H3S_CUDA_CHECK(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  explicit OnDevice(std::int64_t count) {
    H3S_CUDA_CHECK(cudaMalloc(&data_, static_cast<std::size_t>(count) * sizeof(T)));
  }
  OnDevice(OnDevice&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  OnDevice& operator=(OnDevice&&) = delete;
  ~OnDevice() { cudaFree(data_); }
  T* data() const { return static_cast<T*>(data_); }

 private:
  void* data_ = nullptr;
};

// Output memory between guards; poison() fills all of it with 0xFF bytes (NaN).
class DeviceOutput {
 public:
  explicit DeviceOutput(std::int64_t bytes);
  void poison() const;
  void* data() const { return memory_.data() + kGuardBytes; }
  // What it holds; fails the test when a guard was written.
  std::vector<std::uint8_t> read(const std::string& what) const;

 private:
  static constexpr std::int64_t kGuardBytes = 4096;
  std::int64_t bytes_;
  OnDevice<std::uint8_t> memory_;
};

// An op on `rows` rows from row `begin` of `total`; out[i] is where output i of all rows starts.
using RowsOp = std::function<void(std::int64_t begin, std::int64_t rows, std::int64_t total,
                                  const std::vector<void*>& out)>;

// For every total and chunk of kSizes, the chunks have the bits of the whole. `row_bytes`: of each output, a
// row. `prepare` fills outputs that are also inputs.
void expect_chunks_equal_whole(
    const std::string& name, const std::vector<std::int64_t>& row_bytes, const RowsOp& op,
    const std::function<void(std::int64_t total, const std::vector<void*>& out)>& prepare = {});

// The first GPU's fast kernels; the accountant holds no budget.
kernels::Backend& gpu_backend();

}  // namespace h3s::test
