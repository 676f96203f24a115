// Attention: any queries of any heads have the bits of all queries of all heads, for every kernel and dtype,
// at every kind of tail that the keys can have; and the block shapes of attention_mma have the same bits.
#include <fmt/format.h>

#include <cmath>

#include "backend/cuda/attention.h"
#include "backend/cuda/reference/reference.h"
#include "backend_cuda/chunks.h"
#include "kernels/row_ops.h"

namespace h3s::test {
namespace {

constexpr std::int64_t kD = kernels::kHeadDim, kHeads = 3, kQueries = 4099, kMaxKeys = 512;

struct Kernel {
  std::string name;
  std::function<void(const kernels::AttentionArgs&)> run;
};

int attribute(cudaDeviceAttr which) {
  int value = 0;
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, 0));
  return value;
}

std::vector<Kernel> mma_shapes() {
  std::vector<Kernel> all;
  const cuda::AttentionMmaShape largest =
      cuda::attention_mma_shape(attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
  for (const cuda::AttentionMmaShape shape : {cuda::AttentionMmaShape{8, 2}, {8, 1}, {4, 1}})
    if (shape.warps * shape.stages <= largest.warps * largest.stages)
      all.push_back({fmt::format("mma {}x{}", shape.warps, shape.stages),
                     [shape](const kernels::AttentionArgs& a) { cuda::attention_mma(a, shape, nullptr); }});
  return all;
}

std::vector<Kernel> kernels_for(DType dtype) {
  const int major = attribute(cudaDevAttrComputeCapabilityMajor);
  std::vector<Kernel> all;
  if (dtype != DType::kF32 && (dtype == DType::kF16 || major >= 8)) {
    all = mma_shapes();
    if (major == 9)
      all.push_back({"sm90", [](const kernels::AttentionArgs& a) { cuda::attention_sm90(a, nullptr); }});
  }
  all.push_back(
      {"reference", [](const kernels::AttentionArgs& a) { cuda::reference::attention(a, nullptr); }});
  return all;
}

template <typename T>
struct Operands {
  OnDevice<T> q{random_values<T>(kHeads * kQueries * kD, 1, 2.0f)},
      k{random_values<T>(kHeads * kMaxKeys * kD, 2, 2.0f)}, v{random_values<T>(kHeads * kMaxKeys * kD, 3)};

  // Queries [begin, begin + rows) of heads [h0, h0 + heads); o has rows of `o_heads` heads.
  kernels::AttentionArgs args(std::int64_t begin, std::int64_t rows, std::int64_t h0, std::int64_t heads,
                              std::int64_t keys, T* o, std::int64_t o_heads, float* lse) const {
    kernels::AttentionArgs a;
    a.q = q.data() + (h0 * kQueries + begin) * kD;
    a.k = k.data() + h0 * kMaxKeys * kD, a.v = v.data() + h0 * kMaxKeys * kD;
    a.o = o, a.lse = lse, a.dtype = kDTypeOf<T>;
    a.heads = heads, a.q_tokens = rows, a.kv_tokens = keys;
    a.q_head_stride = kQueries * kD, a.k_head_stride = a.v_head_stride = kMaxKeys * kD;
    a.q_token_stride = a.k_token_stride = a.v_token_stride = a.o_head_stride = kD;
    a.o_token_stride = o_heads * kD;
    a.scale = 1.0f / std::sqrt(128.0f);
    return a;
  }
};

template <typename T>
class AttentionChunks : public testing::Test {};
using AttentionTypes = testing::Types<BF16, F16, float>;
TYPED_TEST_SUITE(AttentionChunks, AttentionTypes);

TYPED_TEST(AttentionChunks, Queries) {
  using T = TypeParam;
  const Operands<T> operands;
  constexpr std::int64_t kRowBytes = kHeads * kD * std::int64_t{sizeof(T)};
  for (const Kernel& kernel : kernels_for(kDTypeOf<T>))
    expect_chunks_equal_whole(
        fmt::format("attention {} {}", kernel.name, dtype_name(kDTypeOf<T>)), {kRowBytes},
        [&](std::int64_t begin, std::int64_t rows, std::int64_t, const std::vector<void*>& out) {
          kernel.run(operands.args(begin, rows, 0, kHeads, 129, static_cast<T*>(out[0]) + begin * kHeads * kD,
                                   kHeads, nullptr));
        });
}

template <typename T>
std::vector<std::uint8_t> computed(const Kernel& kernel, const Operands<T>& operands, std::int64_t begin,
                                   std::int64_t rows, std::int64_t h0, std::int64_t heads, std::int64_t keys,
                                   std::vector<std::uint8_t>* lse_bytes) {
  const DeviceOutput o(rows * heads * kD * std::int64_t{sizeof(T)}), lse(heads * rows * 4);
  kernel.run(operands.args(begin, rows, h0, heads, keys, static_cast<T*>(o.data()), heads,
                           static_cast<float*>(lse.data())));
  *lse_bytes = lse.read(kernel.name);
  return o.read(kernel.name);
}

// Tiles are 64 or 128 keys wide: each remainder by 128 that either can have, short and long.
TYPED_TEST(AttentionChunks, HeadsAndQueriesAtEveryTailOfKeys) {
  using T = TypeParam;
  const Operands<T> operands;
  constexpr std::int64_t kAll = 259;
  constexpr auto kRow = kD * static_cast<std::int64_t>(sizeof(T));
  for (const Kernel& kernel : kernels_for(kDTypeOf<T>))
    for (const std::int64_t keys :
         {1, 64, 65, 96, 127, 128, 129, 192, 193, 224, 255, 256, 384, 385, 448, 449, 480, 511})
      for (const auto& [h0, heads, begin, rows] : std::vector<std::array<std::int64_t, 4>>{
               {0, 1, 0, kAll}, {2, 1, 64, 65}, {1, 2, 127, 1}, {0, 3, 31, 97}, {0, 3, 258, 1}}) {
        std::vector<std::uint8_t> whole_lse, lse;
        const auto whole = computed(kernel, operands, 0, kAll, 0, kHeads, keys, &whole_lse);
        const auto part = computed(kernel, operands, begin, rows, h0, heads, keys, &lse);
        for (std::int64_t i = 0; i < rows; ++i)
          ASSERT_TRUE(std::equal(part.begin() + i * heads * kRow, part.begin() + (i + 1) * heads * kRow,
                                 whole.begin() + ((begin + i) * kHeads + h0) * kRow))
              << kernel.name << ", " << keys << " keys, heads " << h0 << " + " << heads << ", query "
              << begin + i;
        for (std::int64_t h = 0; h < heads; ++h)
          ASSERT_TRUE(std::equal(lse.begin() + h * rows * 4, lse.begin() + (h + 1) * rows * 4,
                                 whole_lse.begin() + ((h0 + h) * kAll + begin) * 4))
              << kernel.name << ", " << keys << " keys, log-sum-exp of head " << h0 + h;
      }
}

TYPED_TEST(AttentionChunks, BlockShapesOfMmaAgree) {
  using T = TypeParam;
  if (sizeof(T) == 4) GTEST_SKIP() << "tensor cores have no float32 attention";
  if (kDTypeOf<T> == DType::kBF16 && attribute(cudaDevAttrComputeCapabilityMajor) < 8)
    GTEST_SKIP() << "bf16 needs sm_80";
  const Operands<T> operands;
  for (const std::int64_t keys : {1, 65, 300, 511}) {
    std::vector<std::uint8_t> first, lse;
    for (const Kernel& kernel : mma_shapes()) {
      const auto o = computed(kernel, operands, 0, 300, 0, kHeads, keys, &lse);
      if (first.empty()) first = o;
      EXPECT_EQ(o, first) << kernel.name << ", " << keys << " keys";
    }
  }
}

}  // namespace
}  // namespace h3s::test
