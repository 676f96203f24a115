// What surrounds the ops on a GPU: memory, queues and events, copies, errors, long lists of segments.
#include "backend/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "backend/select.h"
#include "base/error.h"
#include "ops/op_test.h"

namespace h3s::test {
namespace {

using kernels::Event;
using kernels::Queue;

class CudaBackend : public testing::Test {
 protected:
  mem::Accountant accountant_{cuda::make_allocator(0, {}, /*poison=*/true)};
  std::unique_ptr<kernels::Backend> backend_ = cuda::make_backend(0, accountant_);

  mem::Buffer device(std::int64_t bytes) { return accountant_.allocate(mem::Space::kDevice, bytes, "test"); }
  mem::Buffer pinned(std::int64_t bytes) { return accountant_.allocate(mem::Space::kPinned, bytes, "test"); }
  void move(void* dst, const void* src, std::int64_t bytes, Queue queue) {
    backend_->copy({dst, bytes, src, bytes, bytes, 1}, queue);
  }
  void finish(Queue queue) { backend_->sync(backend_->record(queue)); }
};

template <typename Fn>
std::string message_of(Status status, Fn fn) {
  try {
    fn();
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), status) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST_F(CudaBackend, SaysWhereItRuns) {
  EXPECT_NE(backend_->name().find("cuda:0 ("), std::string::npos) << backend_->name();
  EXPECT_FALSE(backend_->device_is_host());
  EXPECT_EQ(accountant_.current_bytes(mem::Space::kDevice), cuda::workspace_bytes());
}

TEST_F(CudaBackend, EveryRefusalNamesTheDevice) {
  EXPECT_NE(message_of(Status::kUnsupported, [&] { cuda::make_backend(99, accountant_); }).find("cuda:99"),
            std::string::npos);
  EXPECT_NE(message_of(Status::kUnsupported, [] { backend::parse_device("cuda:99", 0); }).find("cuda:99"),
            std::string::npos);
  for (const char* text : {"gpu", "cuda", "cuda:", "cuda:-1", "cuda:1x"})
    EXPECT_NE(message_of(Status::kInvalidArgument, [&] { backend::parse_device(text, 0); }).find(text),
              std::string::npos);
  EXPECT_EQ(backend::parse_device("auto", 0).cuda, 0);
}

// 64 MiB within the card: at 10 TB/s, faster than any of today, 13 us there and back.
TEST_F(CudaBackend, StampsGiveTheTimeOfTheWorkBetween) {
  const std::int64_t bytes = std::int64_t{64} << 20;
  const mem::Buffer from = device(bytes), to = device(bytes);
  double last = 0;
  for (int i = 0; i < 50; ++i) {
    const kernels::Stamp begin = backend_->stamp(Queue::kCompute);
    move(to.data(), from.data(), bytes, Queue::kCompute);
    const kernels::Stamp end = backend_->stamp(Queue::kCompute);
    finish(Queue::kCompute);
    const std::optional<double> begin_ms = backend_->passed_ms(begin), end_ms = backend_->passed_ms(end);
    ASSERT_TRUE(begin_ms && end_ms);
    EXPECT_GE(*begin_ms, last);
    EXPECT_GT(*end_ms - *begin_ms, 0.013);
    EXPECT_LT(*end_ms - *begin_ms, 1000);
    last = *end_ms;
  }
}

TEST_F(CudaBackend, AStampOfAnotherQueueIsEmptyUntilItHasPassed) {
  const std::int64_t bytes = std::int64_t{512} << 20;
  const mem::Buffer from = device(bytes), to = pinned(bytes);
  const kernels::Stamp first = backend_->stamp(Queue::kCompute);
  finish(Queue::kCompute);
  move(to.data(), from.data(), bytes, Queue::kDownload);  // 4 ms at the 128 GB/s of the widest link
  const kernels::Stamp end = backend_->stamp(Queue::kDownload);
  EXPECT_FALSE(backend_->passed_ms(end));
  finish(Queue::kDownload);
  const std::optional<double> first_ms = backend_->passed_ms(first), end_ms = backend_->passed_ms(end);
  ASSERT_TRUE(first_ms && end_ms);
  EXPECT_GT(*end_ms, *first_ms + 4);
}

TEST_F(CudaBackend, NewMemoryIsPoisoned) {
  mem::Buffer d = device(1000), host = pinned(1000);
  move(host.data(), d.data(), 1000, Queue::kCompute);
  finish(Queue::kCompute);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(host.as<std::uint8_t>()[i], 0xFF);
}

TEST_F(CudaBackend, CopiesRowsOnly) {
  constexpr std::int64_t kRows = 5, kBytes = 6, kFrom = 10, kTo = 9;
  mem::Buffer d = device(kRows * kTo);
  std::vector<std::uint8_t> source(kRows * kFrom), back(kRows * kTo);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint8_t>(i);
  backend_->copy({d.data(), kTo, source.data(), kFrom, kBytes, kRows}, Queue::kUpload);
  backend_->wait(Queue::kDownload, backend_->record(Queue::kUpload));
  move(back.data(), d.data(), kRows * kTo, Queue::kDownload);
  finish(Queue::kDownload);
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t i = 0; i < kTo; ++i) {
      const int want =
          i < kBytes && r * kTo + i < kRows * kTo ? source[static_cast<std::size_t>(r * kFrom + i)] : 0xFF;
      EXPECT_EQ(back[static_cast<std::size_t>(r * kTo + i)], want) << r << " " << i;
    }
}

// A ring of two slots over the three queues, as the executor drives it, against what it should give.
TEST_F(CudaBackend, QueuesKeepTheOrderOfEvents) {
  constexpr std::int64_t kCount = 1 << 20, kBytes = kCount * 4, kChunks = 64;
  mem::Buffer in = pinned(kBytes * 4), out = pinned(kBytes * kChunks / 16);
  std::array<mem::Buffer, 2> slots{device(kBytes), device(kBytes)};
  std::array<Event, 2> free{};
  for (std::int64_t i = 0; i < 4 * kCount; ++i) in.as<float>()[i] = static_cast<float>(i % 1000) - 500.0f;
  for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) {
    const auto slot = static_cast<std::size_t>(chunk % 2);
    backend_->wait(Queue::kUpload, free[slot]);
    move(slots[slot].data(), in.as<float>() + chunk % 4 * kCount, kBytes, Queue::kUpload);
    backend_->wait(Queue::kCompute, backend_->record(Queue::kUpload));
    for (int i = 0; i < 3; ++i) backend_->silu({slots[slot].data(), slots[slot].data(), DType::kF32, kCount});
    backend_->wait(Queue::kDownload, backend_->record(Queue::kCompute));
    if (chunk % 16 == 15)
      move(out.as<float>() + chunk / 16 * kCount, slots[slot].data(), kBytes, Queue::kDownload);
    free[slot] = backend_->record(Queue::kDownload);
  }
  backend_->sync(free[0]);
  backend_->sync(free[1]);
  std::vector<float> want(kCount);
  for (std::int64_t i = 0; i < kCount; ++i)
    want[static_cast<std::size_t>(i)] = in.as<float>()[3 * kCount + i];
  for (int i = 0; i < 3; ++i) definition_backend().silu({want.data(), want.data(), DType::kF32, kCount});
  for (std::int64_t part = 0; part < kChunks / 16; ++part)
    ASSERT_EQ(std::memcmp(want.data(), out.as<float>() + part * kCount, kBytes), 0) << part;
}

TEST_F(CudaBackend, OldEventsStayPassed) {
  const Event first = backend_->record(Queue::kCompute);
  for (int i = 0; i < 3000; ++i) {
    const Event event = backend_->record(Queue::kUpload);
    if (i % 7 == 0) backend_->wait(Queue::kCompute, event);
  }
  finish(Queue::kUpload);
  backend_->wait(Queue::kUpload, first);
  backend_->sync(first);
  backend_->sync({});
  backend_->wait(Queue::kDownload, {});
}

TEST_F(CudaBackend, ListsOfManySegments) {
  constexpr std::int64_t kM = 1000, kC = 40;
  const std::vector<BF16> x = random_values<BF16>(kM * kC, 1), o = random_values<BF16>(kM * kC, 2);
  const std::vector<BF16> table = random_values<BF16>(7 * kC, 3);
  std::vector<kernels::ModSegment> segments;  // 200 of them, from before the first row to past the last
  for (std::int64_t i = 0; i < 200; ++i) segments.push_back({i * 6, i * 6 + 6, i % 7});
  std::vector<BF16> want = x, got(x.size());
  kernels::GatedResidualArgs args{
      want.data(), o.data(), DType::kBF16, kM, kC, true, {segments.data(), 200, 100, table.data(), kC}, 0};
  definition_backend().gated_residual(args);
  const std::int64_t bytes = kM * kC * 2;
  mem::Buffer dx = device(bytes), d_o = device(bytes), dt = device(7 * kC * 2);
  move(dx.data(), x.data(), bytes, Queue::kCompute);
  move(d_o.data(), o.data(), bytes, Queue::kCompute);
  move(dt.data(), table.data(), 7 * kC * 2, Queue::kCompute);
  args.x = dx.data(), args.o = d_o.data(), args.modulation.table = dt.data();
  backend_->gated_residual(args);
  move(got.data(), dx.data(), bytes, Queue::kCompute);
  finish(Queue::kCompute);
  expect_same_bits({"gated_residual", "200 segments", 1, backend_->name()}, want.data(), got.data(), kM * kC,
                   kC);
}

TEST_F(CudaBackend, TooMuchMemoryIsAnOrdinaryAnswer) {
  const std::string text = message_of(Status::kOverBudget, [&] { device(std::int64_t{1} << 50); });
  EXPECT_NE(text.find("1024.00 TiB"), std::string::npos) << text;
  finish(Queue::kCompute);
  EXPECT_EQ(device(1 << 20).bytes(), 1 << 20);
}

// A failed CUDA call is remembered by the runtime until someone asks: here it stands for a launch that was
// refused.
TEST_F(CudaBackend, AnErrorNamesOpShapeAndCallAndTheNextRunWorks) {
  mem::Buffer x = device(1 << 10);
  ASSERT_NE(cudaSetDevice(99), cudaSuccess);
  const std::string text = message_of(Status::kInternal, [&] {
    backend_->silu({x.data(), x.data(), DType::kF32, 256});
  });
  for (const char* part : {"[silu] 256 x 1 x 1", "silu.cu", "cudaGetLastError", "invalid device ordinal"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
  backend_->silu({x.data(), x.data(), DType::kF32, 256});
  finish(Queue::kCompute);
}

// Pageable host memory on either side is slow but right: what the allocator falls back to.
TEST_F(CudaBackend, OrdinaryHostMemoryWorks) {
  constexpr std::int64_t kBytes = 3 << 20;
  std::vector<std::uint8_t> source(kBytes), back(kBytes);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint8_t>(i * 7);
  mem::Buffer d = device(kBytes);
  move(d.data(), source.data(), kBytes, Queue::kUpload);
  backend_->wait(Queue::kDownload, backend_->record(Queue::kUpload));
  move(back.data(), d.data(), kBytes, Queue::kDownload);
  finish(Queue::kDownload);
  EXPECT_EQ(source, back);
}

// The stream is in order with the caller's own work on it, and lives on without the backend.
TEST_F(CudaBackend, ComputesOnTheCallersStream) {
  constexpr std::int64_t kCount = 1 << 20, kBytes = kCount * 4;
  const std::vector<float> x = random_values<float>(kCount, 7);
  std::vector<float> want(x), got(x);
  definition_backend().silu({x.data(), want.data(), DType::kF32, kCount});
  mem::Buffer d = device(kBytes);
  for (const bool default_stream : {false, true}) {
    cudaStream_t stream = nullptr;
    if (!default_stream) {
      ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    }
    auto backend = cuda::make_backend(0, accountant_, cuda::Kernels::kFast, stream);
    ASSERT_EQ(cudaMemcpyAsync(d.data(), x.data(), kBytes, cudaMemcpyDefault, stream), cudaSuccess);
    backend->silu({d.data(), d.data(), DType::kF32, kCount});
    ASSERT_EQ(cudaMemcpyAsync(got.data(), d.data(), kBytes, cudaMemcpyDefault, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    expect_same_bits({"silu", "caller's stream", 7, backend->name()}, want.data(), got.data(), kCount,
                     kCount);
    backend.reset();
    EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
    if (!default_stream) {
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
  }
}

// Integer sums are exact: whatever kernel makes them, the bits are the definition's.
TEST_F(CudaBackend, PortableKernelsAreOnesOfTheirOwn) {
  constexpr std::int64_t kM = 33, kN = 72, kK = 256;
  const std::vector<std::int8_t> x = random_codes(kM * kK, 1), w = random_codes(kN * kK, 2);
  const std::vector<float> scale = random_values<float>(kM + kN, 3);
  std::vector<float> want(kM * kN), got(kM * kN);
  kernels::LinearInt8Args args{
      x.data(), scale.data(), w.data(), scale.data() + kM, nullptr, want.data(), DType::kF32, kN, kM, kN, kK};
  definition_backend().linear_int8(args);
  auto portable = cuda::make_backend(0, accountant_, cuda::Kernels::kPortable);
  EXPECT_NE(portable->name().find("portable kernels"), std::string::npos) << portable->name();
  EXPECT_NE(backend::kernels_name({.cuda = 0, .portable = true}), backend::kernels_name({.cuda = 0}));
  mem::Buffer dx = device(kM * kK), dw = device(kN * kK), ds = device((kM + kN) * 4),
              dy = device(kM * kN * 4);
  move(dx.data(), x.data(), kM * kK, Queue::kCompute);
  move(dw.data(), w.data(), kN * kK, Queue::kCompute);
  move(ds.data(), scale.data(), (kM + kN) * 4, Queue::kCompute);
  finish(Queue::kCompute);
  args.x = dx.as<std::int8_t>(), args.w = dw.as<std::int8_t>(), args.y = dy.data();
  args.x_scale = ds.as<float>(), args.w_scale = ds.as<float>() + kM;
  portable->linear_int8(args);
  portable->sync(portable->record(Queue::kCompute));
  move(got.data(), dy.data(), kM * kN * 4, Queue::kCompute);
  finish(Queue::kCompute);
  expect_same_bits({"linear_int8", "33 x 72 x 256", 1, portable->name()}, want.data(), got.data(), kM * kN,
                   kN);
}

}  // namespace
}  // namespace h3s::test
