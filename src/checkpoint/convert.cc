#include "checkpoint/convert.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/bytes.h"
#include "base/dispatch.h"
#include "base/error.h"
#include "base/finite.h"
#include "base/parallel.h"
#include "checkpoint/convert_plan.h"
#include "checkpoint/encode_layer.h"
#include "checkpoint/formats.h"
#include "checkpoint/quantize_w4a8.h"
#include "checkpoint/tags.h"
#include "checkpoint/w4a8_levels.h"
#include "checkpoint/weight_rows.h"
#include "io/json.h"
#include "io/safetensors_header.h"

namespace h3s::checkpoint {
namespace {

using io::TensorDecl;
using io::TensorInfo;
using Action = PartTask::Action;

constexpr std::uint64_t kCopyBytes = std::uint64_t{8} << 20;  // written at a time
constexpr std::int64_t kLeastRows = 16;                       // of a thread

class Conversion {
 public:
  Conversion(const Checkpoint& input, const ConvertOptions& options)
      : input_(input), file_(input.file()), options_(options), plan_(plan_parts(input, options)) {
    for (const PartTask& task : plan_.tasks) declare(task);
    declare_others();
    for (const TensorDecl& decl : decls_) summary_.bytes += io::tensor_bytes(decl.dtype, decl.shape).value();
  }

  const ConvertSummary& summary() const { return summary_; }

  void write(const std::string& path, const ConvertProgress& progress) {
    check_room(path);
    progress_ = &progress;
    writer_.emplace(path, decls_, metadata());
    for (const PartTask& task : plan_.tasks) {
      if (task.action == Action::kEncode) encode(task);
      if (task.action == Action::kPlain) narrow(task);
      if (task.action == Action::kKeep) keep(task);
      bias(task);
    }
    for (const TensorInfo* info : others_) copy(file_.data(*info), info->bytes());
    writer_->finish([&](const std::string& temporary) { check_loads(temporary, path); });
  }

 private:
  // ---- what is written ----

  void declare(const PartTask& task) {
    const std::string layer = input_.prefix() + task.part->name;
    if (is_linear(task.part->kind)) count(task);
    switch (task.action) {
      case Action::kKeep:
        for (const KeptTensor& kept : task.kept)
          decls_.push_back({kept.name, kept.info->dtype, kept.info->shape});
        if (!task.tag.empty()) decls_.push_back({layer + kTagSuffix, DType::kU8, {std::ssize(task.tag)}});
        break;
      case Action::kPlain:
        decls_.push_back({layer + ".weight", task.plain_dtype(), {task.source.n, task.source.k}});
        break;
      case Action::kEncode:
        for (TensorDecl& decl : task.encoder(1).tensors(layer)) decls_.push_back(std::move(decl));
        break;
    }
    if (task.source.bias != nullptr)
      decls_.push_back({layer + ".bias", bias_dtype(task), task.source.bias->shape});
  }

  void count(const PartTask& task) {
    ++summary_.layers[weight_format_name(task.format)];
    summary_.kept += task.action == Action::kKeep && task.map.identity();
    summary_.requantised += task.action == Action::kEncode && !task.source.plain();
  }

  // What is left of the file: keys outside the network, copied as they are.
  void declare_others() {
    std::set<std::string> taken{input_.prefix() + kLegacyFp8Key};
    for (const PartTask& task : plan_.tasks) {
      const std::string layer = input_.prefix() + task.part->name;
      taken.insert(input_.prefix() + task.part->key());
      if (!is_linear(task.part->kind)) continue;
      for (const char* suffix : kCompanionSuffixes) taken.insert(fmt::format("{}.{}", layer, suffix));
      for (const char* suffix : {".bias", ".scale_weight", ".scale_input", kTagSuffix})
        taken.insert(layer + suffix);
    }
    for (const TensorInfo& info : file_.tensors()) {
      if (taken.contains(info.name)) continue;
      others_.push_back(&info);
      decls_.push_back({info.name, info.dtype, info.shape});
    }
  }

  std::map<std::string, std::string> metadata() const {
    std::map<std::string, std::string> out = file_.metadata();
    out.erase(kQuantMetadataKey);  // every tag is a tensor now
    out["converted_by"] = "h3stream convert";
    return out;
  }

  static DType bias_dtype(const PartTask& task) {
    return task.action == Action::kPlain ? task.plain_dtype() : task.source.bias->dtype;
  }

  // A file system that cannot set space aside would tell at the end.
  void check_room(const std::string& path) const {
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    std::error_code unknown;
    const auto space = std::filesystem::space(parent.empty() ? "." : parent, unknown);
    if (!unknown && space.available < summary_.bytes)
      fail(Status::kIo, "{}: needs {} of disk, {} are free", path,
           format_bytes(static_cast<std::int64_t>(summary_.bytes)),
           format_bytes(static_cast<std::int64_t>(space.available)));
  }

  // What was written has to be what this program reads.
  static void check_loads(const std::string& temporary, const std::string& path) {
    try {
      Checkpoint::open(temporary);
    } catch (const Error& e) {
      fail(e.status(), "{}: what was made would not load and was thrown away: {}", path, e.what());
    }
  }

  // ---- writing ----

  void put(const void* data, std::uint64_t bytes) {
    writer_->write(data, bytes);
    done_bytes_ += bytes;
    if (*progress_) (*progress_)(done_bytes_, summary_.bytes);
  }

  // From the mapping, whose pages are given back.
  void copy(const std::byte* data, std::uint64_t bytes) {
    for (std::uint64_t at = 0; at < bytes; at += kCopyBytes) put(data + at, std::min(kCopyBytes, bytes - at));
    file_.release_pages(data, bytes);
  }

  void keep(const PartTask& task) {
    for (const KeptTensor& kept : task.kept) {
      if (kept.by_rows && !task.map.identity())
        copy_groups(*kept.info, task.map);
      else
        copy(file_.data(*kept.info), kept.info->bytes());
    }
    if (!task.tag.empty()) put(task.tag.data(), task.tag.size());
  }

  void copy_groups(const TensorInfo& info, const RowMap& map) {
    const std::uint64_t group_bytes = info.bytes() / map.source.size();
    for (const std::int64_t group : map.source)
      copy(file_.data(info) + static_cast<std::uint64_t>(group) * group_bytes, group_bytes);
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& reason) const {
    fail(Status::kBadFile, "{}: {}: {}", file_.path(), io::printable(key), reason);
  }

  void encode(const PartTask& task) {
    const WeightRows rows(input_, task.source);
    const std::int64_t n = rows.n(), k = rows.k();
    const ReadRow read = [&](std::int64_t row, std::span<BF16> out) {
      std::vector<float> scratch(out.size());
      rows.read(task.map.row(row), out, scratch);
      check_finite(task, row, out);
    };
    float largest = 0;
    if (LayerEncoder::needs_largest(task.format)) {
      largest = largest_magnitude(n, k, options_.threads, read);
      rows.release_pages();
      if (!(largest > 0))
        refuse(task.source.key, fmt::format("every value is zero, and {} has no scale for that",
                                            weight_format_name(task.format)));
    }
    LayerEncoder layer = task.encoder(largest);
    if (task.format == WeightFormat::kAsymW4A8) choose_levels(layer, read);
    encode_layer(layer, n, k, options_.threads, read, [&](const void* data, std::size_t bytes) {
      put(data, bytes);
      rows.release_pages();
    });
  }

  void choose_levels(LayerEncoder& layer, const ReadRow& read) {
    const auto levels = w4a8_levels(w4a8_sample(layer.n(), layer.k(), layer.rotate_group(), read));
    summary_.fitted += levels != kW4A8Codebook;
    layer.use_levels(levels);
  }

  void check_finite(const PartTask& task, std::int64_t row, std::span<const BF16> values) const {
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    if (find_non_finite(bytes, DType::kBF16, std::ssize(values)) >= 0)
      refuse(task.source.key, fmt::format("row {} holds a value that is no finite number", row));
  }

  void narrow(const PartTask& task) {
    const WeightRows rows(input_, task.source);
    const DType dtype = task.plain_dtype();
    const auto row_bytes = rows.k() * static_cast<std::int64_t>(dtype_size(dtype));
    const std::int64_t chunk = rows_a_thread(row_bytes) * options_.threads;
    std::vector<std::byte> bytes;
    for (std::int64_t first = 0; first < rows.n(); first += chunk) {
      const std::int64_t count = std::min(chunk, rows.n() - first);
      bytes.resize(static_cast<std::size_t>(count * row_bytes));
      in_slices(count, kLeastRows, options_.threads, [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> scratch(static_cast<std::size_t>(rows.k()));
        for (std::int64_t r = begin; r < end; ++r)
          narrow_row(task, rows, first + r, scratch, bytes.data() + r * row_bytes);
      });
      put(bytes.data(), bytes.size());
      rows.release_pages();
    }
  }

  void narrow_row(const PartTask& task, const WeightRows& rows, std::int64_t row, std::span<float> scratch,
                  std::byte* out) const {
    const std::int64_t from = task.map.row(row);
    if (task.format == WeightFormat::kBF16) {
      std::vector<BF16> narrow(scratch.size());
      rows.read(from, narrow, scratch);
      std::memcpy(out, narrow.data(), narrow.size() * sizeof(BF16));
      check_narrowed(task.source.key, DType::kBF16, scratch, out);
    } else {
      rows.read(from, scratch);
      narrow_floats(task.source.key, task.plain_dtype(), scratch, out);
    }
  }

  // Values of the tensor `key` in a plain type.
  void narrow_floats(const std::string& key, DType dtype, std::span<const float> values,
                     std::byte* out) const {
    dispatch_dtype<float, BF16, F16>(dtype, "convert", [&]<typename T>() {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const T value = from_float<T>(values[i]);
        std::memcpy(out + i * sizeof value, &value, sizeof value);
      }
    });
    check_narrowed(key, dtype, values, out);
  }

  // `stored` is what became of `values`.
  void check_narrowed(const std::string& key, DType dtype, std::span<const float> values,
                      const std::byte* stored) const {
    const std::int64_t bad = find_non_finite(stored, dtype, std::ssize(values));
    if (bad < 0) return;
    const float value = values[static_cast<std::size_t>(bad)];
    refuse(key, std::isfinite(value) ? fmt::format("{} is too large for {}", value, dtype_name(dtype))
                                     : fmt::format("holds {}, expected finite numbers", value));
  }

  void bias(const PartTask& task) {
    if (task.source.bias == nullptr) return;
    const TensorInfo& info = *task.source.bias;
    if (bias_dtype(task) == info.dtype) return copy(file_.data(info), info.bytes());
    std::vector<float> values(static_cast<std::size_t>(info.elements()));
    read_floats(file_, info, 0, values);
    std::vector<std::byte> bytes(values.size() * dtype_size(bias_dtype(task)));
    narrow_floats(info.name, bias_dtype(task), values, bytes.data());
    put(bytes.data(), bytes.size());
  }

  const Checkpoint& input_;
  const io::SafetensorsReader& file_;
  const ConvertOptions& options_;
  PartTasks plan_;
  std::vector<const TensorInfo*> others_;
  std::vector<TensorDecl> decls_;
  ConvertSummary summary_;
  std::optional<io::SafetensorsWriter> writer_;
  const ConvertProgress* progress_ = nullptr;
  std::uint64_t done_bytes_ = 0;
};

}  // namespace

ConvertSummary plan_conversion(const Checkpoint& input, const ConvertOptions& options) {
  return Conversion(input, options).summary();
}

ConvertSummary convert_checkpoint(const Checkpoint& input, const std::string& path,
                                  const ConvertOptions& options, const ConvertProgress& progress) {
  Conversion conversion(input, options);
  conversion.write(path, progress);
  return conversion.summary();
}

}  // namespace h3s::checkpoint
