#include <omp.h>

#include <dnnl.hpp>

#include "base/error.h"
#include "comparators.h"

namespace h3s::bench::onednn {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;
using Type = memory::data_type;

memory::desc packed(std::int64_t rows, std::int64_t cols, Type type, Tag tag) {
  return {{rows, cols}, type, tag};
}

}  // namespace

bool available() {
  return true;
}

nlohmann::json describe() {
  const dnnl_version_t* version = dnnl_version();
  return {{"version", fmt::format("{}.{}.{}", version->major, version->minor, version->patch)}};
}

struct Int8Matmul::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul matmul;
  memory x, w, y;
};

Int8Matmul::Int8Matmul(const std::uint8_t* x, const std::int8_t* w, std::int32_t* y, std::int64_t m,
                       std::int64_t n, std::int64_t k, int num_threads)
    : state_(std::make_unique<State>()) {
  omp_set_num_threads(num_threads);
  State& s = *state_;
  const memory::desc x_desc = packed(m, k, Type::u8, Tag::ab), y_desc = packed(m, n, Type::s32, Tag::ab);
  // w is stored [n][k]: as a k x n matrix its columns are dense.
  const memory plain(packed(k, n, Type::s8, Tag::ba), s.engine, const_cast<std::int8_t*>(w));
  s.desc = {dnnl::matmul::desc(x_desc, packed(k, n, Type::s8, Tag::any), y_desc), s.engine};
  s.matmul = dnnl::matmul(s.desc);
  s.x = memory(x_desc, s.engine, const_cast<std::uint8_t*>(x));
  s.y = memory(y_desc, s.engine, y);
  s.w = memory(s.desc.weights_desc(), s.engine);
  dnnl::reorder(plain, s.w).execute(s.stream, const_cast<memory&>(plain), s.w);
  s.stream.wait();
}

Int8Matmul::~Int8Matmul() = default;

void Int8Matmul::run() {
  state_->matmul.execute(
      state_->stream, {{DNNL_ARG_SRC, state_->x}, {DNNL_ARG_WEIGHTS, state_->w}, {DNNL_ARG_DST, state_->y}});
  state_->stream.wait();
}

std::string Int8Matmul::implementation() const {
  return state_->desc.impl_info_str();
}

}  // namespace h3s::bench::onednn
