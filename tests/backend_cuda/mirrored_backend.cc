#include "backend_cuda/mirrored_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace h3s::test {

using kernels::Queue;

namespace {

constexpr std::int64_t kGuardBytes = 256;
constexpr std::int64_t kMinImageBytes = std::int64_t{64} << 20;

std::int64_t size_of(DType dtype) {
  return static_cast<std::int64_t>(dtype_size(dtype));
}

// Elements from the first to the last of [rows][columns] with a row stride.
std::int64_t extent(std::int64_t rows, std::int64_t stride, std::int64_t columns) {
  return (rows - 1) * stride + columns;
}

}  // namespace

// One op call: operands are added, then run() does the rest.
class MirroredBackend::Call {
 public:
  explicit Call(MirroredBackend& backend) : backend_(backend), image_(kGuardBytes, 0xFF) {}

  // The offset in the image of `count` elements of `element_bytes`, or -1 for a null pointer. The same host
  // pointer is placed once: what is in place on the host is in place on the device.
  std::int64_t in(const void* host, std::int64_t count, std::int64_t element_bytes) {
    return add(host, count, element_bytes, false);
  }
  std::int64_t out(void* host, std::int64_t count, std::int64_t element_bytes) {
    return add(host, count, element_bytes, true);
  }

  template <typename T>
  T* at(std::int64_t offset) const {
    return offset < 0 ? nullptr : reinterpret_cast<T*>(backend_.device_.as<std::byte>() + offset);
  }

  // Sends the image, calls fn, which enqueues the op, brings the image back, checks it and copies outputs to
  // the host.
  void run(const std::function<void()>& fn) {
    kernels::Backend& inner = backend_.inner_;
    const std::vector<std::uint8_t> before = image_;
    const auto bytes = static_cast<std::int64_t>(image_.size());
    inner.copy({backend_.device_.data(), bytes, image_.data(), bytes, bytes, 1}, Queue::kCompute);
    fn();
    inner.copy({image_.data(), bytes, backend_.device_.data(), bytes, bytes, 1}, Queue::kCompute);
    inner.sync(inner.record(Queue::kCompute));
    std::size_t next = 0;
    for (const Operand& operand : operands_) {
      if (!operand.is_output) continue;
      const auto begin = static_cast<std::size_t>(operand.offset),
                 size = static_cast<std::size_t>(operand.bytes);
      expect_unchanged(before, next, begin);
      std::memcpy(operand.host, image_.data() + begin, size);
      next = begin + size;
    }
    expect_unchanged(before, next, image_.size());
  }

  // Device memory for what has been added.
  void reserve() {
    const auto bytes = static_cast<std::int64_t>(image_.size());
    if (backend_.device_.data() != nullptr && backend_.device_.bytes() >= bytes) return;
    backend_.device_ = mem::Buffer();
    backend_.device_ =
        backend_.accountant_.allocate(mem::Space::kDevice, std::max(bytes, kMinImageBytes), "image");
  }

 private:
  struct Operand {
    void* host;
    std::int64_t offset, bytes;
    bool is_output;
  };

  std::int64_t add(const void* host, std::int64_t count, std::int64_t element_bytes, bool is_output) {
    if (host == nullptr) return -1;
    for (Operand& operand : operands_)
      if (operand.host == host) {
        operand.is_output |= is_output;
        return operand.offset;
      }
    const std::int64_t offset =
        static_cast<std::int64_t>(image_.size()) + backend_.shift_elements_ * element_bytes;
    const std::int64_t bytes = count * element_bytes;
    const std::int64_t end = (offset + bytes + 2 * kGuardBytes - 1) / kGuardBytes * kGuardBytes;
    image_.resize(static_cast<std::size_t>(end), 0xFF);
    std::memcpy(image_.data() + offset, host, static_cast<std::size_t>(bytes));
    operands_.push_back({const_cast<void*>(host), offset, bytes, is_output});
    return offset;
  }

  void expect_unchanged(const std::vector<std::uint8_t>& before, std::size_t begin, std::size_t end) const {
    for (std::size_t i = begin; i < end; ++i)
      if (image_[i] != before[i]) {
        ADD_FAILURE() << backend_.name() << ": byte " << i << " of the image changed outside every output";
        return;
      }
  }

  MirroredBackend& backend_;
  std::vector<std::uint8_t> image_;
  std::vector<Operand> operands_;
};

MirroredBackend::MirroredBackend(kernels::Backend& inner, mem::Accountant& accountant,
                                 std::int64_t shift_elements)
    : inner_(inner), accountant_(accountant), shift_elements_(shift_elements) {}

std::string MirroredBackend::name() const {
  return fmt::format("{}{}", inner_.name(), shift_elements_ == 0 ? "" : ", misaligned");
}

void MirroredBackend::copy(const kernels::Copy2d&, Queue) {
  fail(Status::kInternal, "a mirrored backend copies nothing");
}

void MirroredBackend::linear(const kernels::LinearArgs& args) {
  Call call(*this);
  kernels::LinearArgs a = args;
  const std::int64_t x = call.in(a.x, extent(a.m, a.x_stride, a.k), size_of(a.x_dtype));
  const std::int64_t w = call.in(a.w, spanned_rows(a) * a.k, size_of(a.w_dtype)),
                     bias = call.in(a.bias, spanned_rows(a), 4);
  const std::int64_t x_scale = call.in(a.x_scale, a.m, 4);
  const std::int64_t y = call.out(a.y, extent(a.m, a.y_stride, a.n), size_of(a.y_dtype));
  call.reserve();
  a.x = call.at<void>(x), a.w = call.at<void>(w), a.bias = call.at<float>(bias), a.y = call.at<void>(y);
  a.x_scale = call.at<float>(x_scale);
  call.run([&] { inner_.linear(a); });
}

void MirroredBackend::linear_int8(const kernels::LinearInt8Args& args) {
  Call call(*this);
  kernels::LinearInt8Args a = args;
  const std::int64_t x = call.in(a.x, a.m * a.k, 1), x_scale = call.in(a.x_scale, a.m, 4);
  const std::int64_t w = call.in(a.w, spanned_rows(a) * a.k, 1),
                     w_scale = call.in(a.w_scale, spanned_rows(a), 4),
                     bias = call.in(a.bias, spanned_rows(a), 4);
  const std::int64_t y = call.out(a.y, extent(a.m, a.y_stride, a.n), size_of(a.y_dtype));
  call.reserve();
  a.x = call.at<std::int8_t>(x), a.x_scale = call.at<float>(x_scale), a.w = call.at<std::int8_t>(w);
  a.w_scale = call.at<float>(w_scale), a.bias = call.at<float>(bias), a.y = call.at<void>(y);
  call.run([&] { inner_.linear_int8(a); });
}

void MirroredBackend::quantize_rows(const kernels::QuantizeRowsArgs& args) {
  Call call(*this);
  kernels::QuantizeRowsArgs a = args;
  const std::int64_t x = call.in(a.x, extent(a.m, a.x_stride, a.k), size_of(a.x_dtype));
  const std::int64_t codes = call.out(a.codes, a.m * a.k, 1), scale = call.out(a.scale, a.m, 4);
  call.reserve();
  a.x = call.at<void>(x), a.codes = call.at<std::int8_t>(codes), a.scale = call.at<float>(scale);
  call.run([&] { inner_.quantize_rows(a); });
}

void MirroredBackend::quantize_float(const kernels::QuantizeFloatArgs& args) {
  Call call(*this);
  kernels::QuantizeFloatArgs a = args;
  const std::int64_t x = call.in(a.x, extent(a.m, a.x_stride, a.k), size_of(a.x_dtype));
  const std::int64_t pre_scale = call.in(a.pre_scale, a.k, 4), peak = call.in(a.peak, 1, 4);
  const std::int64_t y = call.out(a.y, a.m * a.k, 2), row_scale = call.out(a.row_scale, a.m, 4);
  call.reserve();
  a.x = call.at<void>(x), a.pre_scale = call.at<float>(pre_scale), a.peak = call.at<float>(peak);
  a.y = call.at<void>(y), a.row_scale = call.at<float>(row_scale);
  call.run([&] { inner_.quantize_float(a); });
}

void MirroredBackend::abs_max(const kernels::AbsMaxArgs& args) {
  Call call(*this);
  kernels::AbsMaxArgs a = args;
  const std::int64_t x = call.in(a.x, extent(a.m, a.x_stride, a.k), size_of(a.x_dtype));
  const std::int64_t pre_scale = call.in(a.pre_scale, a.k, 4), peak = call.out(a.peak, 1, 4);
  call.reserve();
  a.x = call.at<void>(x), a.pre_scale = call.at<float>(pre_scale), a.peak = call.at<float>(peak);
  call.run([&] { inner_.abs_max(a); });
}

void MirroredBackend::swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& args) {
  Call call(*this);
  kernels::SwigluQuantizeRowsArgs a = args;
  const std::int64_t x = call.in(a.gate_up, a.m * 2 * a.k, size_of(a.dtype));
  const std::int64_t codes = call.out(a.codes, a.m * a.k, 1), scale = call.out(a.scale, a.m, 4);
  call.reserve();
  a.gate_up = call.at<void>(x), a.codes = call.at<std::int8_t>(codes), a.scale = call.at<float>(scale);
  call.run([&] { inner_.swiglu_quantize_rows(a); });
}

namespace {

// Elements of the table that the segments point to.
std::int64_t table_extent(const kernels::Modulation& modulation) {
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < modulation.num_segments; ++i)
    rows = std::max(rows, modulation.segments[i].row + 1);
  return rows * modulation.row_stride;
}

}  // namespace

void MirroredBackend::rms_norm(const kernels::RmsNormArgs& args) {
  Call call(*this);
  kernels::RmsNormArgs a = args;
  const std::int64_t x = call.in(a.x, extent(a.m, a.x_stride, a.c), size_of(a.dtype)),
                     weight = call.in(a.weight, a.c, 4);
  const std::int64_t y = call.out(a.y, a.m * a.c, size_of(a.dtype));
  const std::int64_t table =
      a.modulate ? call.in(a.modulation.table, table_extent(a.modulation), size_of(a.dtype)) : -1;
  call.reserve();
  a.x = call.at<void>(x), a.weight = call.at<float>(weight), a.y = call.at<void>(y),
  a.modulation.table = call.at<void>(table);
  call.run([&] { inner_.rms_norm(a); });
}

void MirroredBackend::gated_residual(const kernels::GatedResidualArgs& args) {
  Call call(*this);
  kernels::GatedResidualArgs a = args;
  const std::int64_t x = call.out(a.x, a.m * a.c, size_of(a.dtype)),
                     o = call.in(a.o, a.m * a.c, size_of(a.dtype));
  const std::int64_t table =
      a.modulate ? call.in(a.modulation.table, table_extent(a.modulation), size_of(a.dtype)) : -1;
  call.reserve();
  a.x = call.at<void>(x), a.o = call.at<void>(o), a.modulation.table = call.at<void>(table);
  call.run([&] { inner_.gated_residual(a); });
}

void MirroredBackend::swiglu(const kernels::SwigluArgs& args) {
  Call call(*this);
  kernels::SwigluArgs a = args;
  const std::int64_t x = call.in(a.gate_up, a.m * 2 * a.f, size_of(a.dtype)),
                     y = call.out(a.y, a.m * a.f, size_of(a.dtype));
  call.reserve();
  a.gate_up = call.at<void>(x), a.y = call.at<void>(y);
  call.run([&] { inner_.swiglu(a); });
}

void MirroredBackend::silu(const kernels::SiluArgs& args) {
  Call call(*this);
  kernels::SiluArgs a = args;
  const std::int64_t x = call.in(a.x, a.count, size_of(a.dtype)),
                     y = call.out(a.y, a.count, size_of(a.dtype));
  call.reserve();
  a.x = call.at<void>(x), a.y = call.at<void>(y);
  call.run([&] { inner_.silu(a); });
}

void MirroredBackend::modulation_table(const kernels::ModulationTableArgs& args) {
  Call call(*this);
  kernels::ModulationTableArgs a = args;
  const std::int64_t count = a.rows * 6 * a.c;
  const std::int64_t adaln = call.in(a.adaln, count, size_of(a.adaln_dtype)),
                     table = call.out(a.table, count, size_of(a.dtype));
  call.reserve();
  a.adaln = call.at<void>(adaln), a.table = call.at<void>(table);
  call.run([&] { inner_.modulation_table(a); });
}

void MirroredBackend::final_modulate(const kernels::FinalModulateArgs& args) {
  Call call(*this);
  kernels::FinalModulateArgs a = args;
  const std::int64_t x = call.in(a.x, a.m * a.c, size_of(a.dtype)), weight = call.in(a.weight, a.c, 4);
  const std::int64_t scale = call.in(a.scale, a.c, 4), shift = call.in(a.shift, a.c, 4),
                     y = call.out(a.y, a.m * a.c, 4);
  call.reserve();
  a.x = call.at<void>(x), a.weight = call.at<float>(weight), a.scale = call.at<float>(scale),
  a.shift = call.at<float>(shift);
  a.y = call.at<float>(y);
  call.run([&] { inner_.final_modulate(a); });
}

void MirroredBackend::rope_table(const kernels::RopeTableArgs& args) {
  Call call(*this);
  kernels::RopeTableArgs a = args;
  const std::int64_t positions = call.in(a.positions, a.m * kernels::kRopeAxes, 8);
  const std::int64_t inv_freq = call.in(a.inv_freq, kernels::kRopePairs / kernels::kRopeAxes, 4);
  const std::int64_t table = call.out(a.table, a.m * 2 * kernels::kRopePairs, size_of(a.dtype));
  call.reserve();
  a.positions = call.at<double>(positions), a.inv_freq = call.at<float>(inv_freq),
  a.table = call.at<void>(table);
  call.run([&] { inner_.rope_table(a); });
}

void MirroredBackend::qkv_norm_rope(const kernels::QkvArgs& args) {
  Call call(*this);
  kernels::QkvArgs a = args;
  const std::int64_t d = kernels::kHeadDim, size = size_of(a.dtype);
  struct Offsets {
    std::int64_t src, dst;
  };
  const auto place = [&](const kernels::QkvArgs::Part& part) -> Offsets {
    if (part.src == nullptr) return {-1, -1};
    return {call.in(part.src, extent(a.m, a.src_stride, a.heads * d), size),
            call.out(part.dst, extent(a.heads, part.dst_head_stride, a.m * d), size)};
  };
  const Offsets q = place(a.q), k = place(a.k), v = place(a.v);
  const std::int64_t q_weight = call.in(a.q_weight, d, 4), k_weight = call.in(a.k_weight, d, 4);
  const std::int64_t rope = call.in(a.rope, a.m * 2 * kernels::kRopePairs, size);
  call.reserve();
  a.q.src = call.at<void>(q.src), a.q.dst = call.at<void>(q.dst), a.k.src = call.at<void>(k.src),
  a.k.dst = call.at<void>(k.dst);
  a.v.src = call.at<void>(v.src), a.v.dst = call.at<void>(v.dst);
  a.q_weight = call.at<float>(q_weight), a.k_weight = call.at<float>(k_weight), a.rope = call.at<void>(rope);
  call.run([&] { inner_.qkv_norm_rope(a); });
}

void MirroredBackend::attention(const kernels::AttentionArgs& args) {
  Call call(*this);
  kernels::AttentionArgs a = args;
  const std::int64_t size = size_of(a.dtype);
  const auto count = [&](std::int64_t tokens, std::int64_t head_stride, std::int64_t token_stride) {
    return (a.heads - 1) * head_stride + (tokens - 1) * token_stride + kernels::kHeadDim;
  };
  const std::int64_t q = call.in(a.q, count(a.q_tokens, a.q_head_stride, a.q_token_stride), size);
  const std::int64_t k = call.in(a.k, count(a.kv_tokens, a.k_head_stride, a.k_token_stride), size);
  const std::int64_t v = call.in(a.v, count(a.kv_tokens, a.v_head_stride, a.v_token_stride), size);
  const std::int64_t o = call.out(a.o, count(a.q_tokens, a.o_head_stride, a.o_token_stride), size);
  const std::int64_t lse = call.out(a.lse, a.heads * a.q_tokens, 4);
  call.reserve();
  a.q = call.at<void>(q), a.k = call.at<void>(k), a.v = call.at<void>(v), a.o = call.at<void>(o),
  a.lse = call.at<float>(lse);
  call.run([&] { inner_.attention(a); });
}

}  // namespace h3s::test
