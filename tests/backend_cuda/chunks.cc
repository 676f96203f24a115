#include "backend_cuda/chunks.h"

#include <fmt/format.h>

#include <algorithm>

namespace h3s::test {

DeviceOutput::DeviceOutput(std::int64_t bytes) : bytes_(bytes), memory_(bytes + 2 * kGuardBytes) {
  poison();
}

void DeviceOutput::poison() const {
  H3S_CUDA_CHECK(cudaMemset(memory_.data(), 0xFF, static_cast<std::size_t>(bytes_ + 2 * kGuardBytes)));
  H3S_CUDA_CHECK(cudaDeviceSynchronize());  // the backend's streams do not wait for the default one
}

std::vector<std::uint8_t> DeviceOutput::read(const std::string& what) const {
  std::vector<std::uint8_t> all(static_cast<std::size_t>(bytes_ + 2 * kGuardBytes));
  H3S_CUDA_CHECK(cudaDeviceSynchronize());
  H3S_CUDA_CHECK(cudaMemcpy(all.data(), memory_.data(), all.size(), cudaMemcpyDeviceToHost));
  const auto begin = all.begin() + kGuardBytes, end = all.end() - kGuardBytes;
  const auto intact = [](std::uint8_t byte) { return byte == 0xFF; };
  EXPECT_TRUE(std::all_of(all.begin(), begin, intact) && std::all_of(end, all.end(), intact))
      << what << ": wrote outside its output";
  return {begin, end};
}

namespace {

class Outputs {
 public:
  Outputs(const std::vector<std::int64_t>& row_bytes, std::int64_t rows) {
    for (const std::int64_t bytes : row_bytes)
      outputs_.push_back(std::make_unique<DeviceOutput>(bytes * rows));
  }
  std::vector<void*> pointers() const {
    std::vector<void*> all;
    for (const auto& output : outputs_) all.push_back(output->data());
    return all;
  }
  void poison() const {
    for (const auto& output : outputs_) output->poison();
  }
  std::vector<std::vector<std::uint8_t>> read(const std::string& what) const {
    std::vector<std::vector<std::uint8_t>> all;
    for (const auto& output : outputs_) all.push_back(output->read(what));
    return all;
  }

 private:
  std::vector<std::unique_ptr<DeviceOutput>> outputs_;
};

}  // namespace

void expect_chunks_equal_whole(const std::string& name, const std::vector<std::int64_t>& row_bytes,
                               const RowsOp& op,
                               const std::function<void(std::int64_t, const std::vector<void*>&)>& prepare) {
  for (const std::int64_t total : kSizes) {
    const Outputs outputs(row_bytes, total);
    const auto run = [&](std::int64_t chunk) {
      outputs.poison();
      if (prepare) prepare(total, outputs.pointers());
      for (std::int64_t begin = 0; begin < total; begin += chunk)
        op(begin, std::min(chunk, total - begin), total, outputs.pointers());
      return outputs.read(fmt::format("{}, {} rows in chunks of {}", name, total, chunk));
    };
    const auto whole = run(total);
    for (const std::int64_t chunk : kSizes) {
      if (chunk >= total) break;
      const auto chunks = run(chunk);
      for (std::size_t i = 0; i < whole.size(); ++i) {
        const auto at =
            std::mismatch(whole[i].begin(), whole[i].end(), chunks[i].begin()).first - whole[i].begin();
        EXPECT_EQ(at, static_cast<std::ptrdiff_t>(whole[i].size()))
            << name << " on " << gpu_backend().name() << ": " << total << " rows in chunks of " << chunk
            << ", output " << i << " differs first at byte " << at << ", row " << at / row_bytes[i];
      }
    }
  }
}

kernels::Backend& gpu_backend() {
  static mem::Accountant accountant(cuda::make_allocator(0));
  static const std::unique_ptr<kernels::Backend> backend = cuda::make_backend(0, accountant);
  return *backend;
}

}  // namespace h3s::test
