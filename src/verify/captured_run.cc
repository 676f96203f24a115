#include "verify/captured_run.h"

#include <bit>

#include "base/dispatch.h"
#include "mem/accountant.h"

namespace h3s::verify {
namespace {

void append(std::vector<float>& out, const void* data, DType dtype, std::int64_t first, std::int64_t count) {
  dispatch_dtype<float, BF16>(dtype, "capture", [&]<typename T>() {
    const T* values = static_cast<const T*>(data) + first;
    for (std::int64_t i = 0; i < count; ++i) out.push_back(to_float(values[i]));
  });
}

// Keeps whole tensors, or the rows asked for, which ascend as they pass.
exec::RowTap make_tap(const std::vector<std::int64_t>& wanted, Capture& capture) {
  return [&wanted, &capture](const std::string& name, std::int64_t first_row, std::int64_t rows,
                             const void* data, DType dtype, std::int64_t columns) {
    std::vector<float>& out = capture.tensors[name];
    if (wanted.empty()) append(out, data, dtype, 0, rows * columns);
    for (const std::int64_t row : wanted)
      if (row >= first_row && row < first_row + rows)
        append(out, data, dtype, (row - first_row) * columns, columns);
  };
}

}  // namespace

Capture run_captured(const CaptureJob& job, const NamedPlan& plan) {
  backend::DeviceChoice device = job.device;
  device.threads = plan.threads;
  mem::Accountant accountant(backend::make_allocator(device, {}, /*poison=*/true));
  const std::unique_ptr<kernels::Backend> engine = backend::make_backend(device, accountant);
  Capture capture;
  {
    exec::Session session(*engine, accountant, job.checkpoint, job.layout,
                          {.compute = job.compute, .dials = plan.dials, .timesteps = job.timesteps});
    session.on_rows(make_tap(job.rows, capture));
    session.set_conditioning(
        {job.inputs.text.data(), job.inputs.visual_rows.data(), job.inputs.audio_rows.data()});
    std::vector<float>& video = capture.tensors["video_out"];
    std::vector<float>& audio = capture.tensors["audio_out"];
    video.resize(job.inputs.video.size());
    audio.resize(job.inputs.audio.size());
    session.forward(job.inputs.video.data(), job.inputs.audio.data(), job.sigma, video.data(), audio.data());
    capture.tensors["t_emb"] = session.last_time_embedding();
    capture.timesteps = session.last_timesteps();
  }
  for (int i = 0; i < mem::kNumSpaces; ++i)
    capture.peak_bytes[static_cast<std::size_t>(i)] = accountant.peak_bytes(static_cast<mem::Space>(i));
  return capture;
}

std::string first_difference(const Capture& a, const Capture& b) {
  for (const auto& [name, values] : a.tensors) {
    const std::vector<float>& others = b.tensors.at(name);
    if (values.size() != others.size()) return fmt::format("{} has another size", name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto x = std::bit_cast<std::uint32_t>(values[i]), y = std::bit_cast<std::uint32_t>(others[i]);
      if (x != y)
        return fmt::format("{}[{}]: {} ({:08x}) against {} ({:08x})", name, i, values[i], x, others[i], y);
    }
  }
  return "";
}

}  // namespace h3s::verify
