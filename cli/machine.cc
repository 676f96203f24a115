#include "machine.h"

#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/error.h"
#include "log.h"
#include "plan/cards.h"

namespace h3s::cli {
namespace {

plan::Calibration expected(const backend::DeviceChoice& device) {
  if (device.on_cpu())
    return plan::expect_cpu(device.threads > 0 ? device.threads
                                               : static_cast<int>(std::thread::hardware_concurrency()));
  const backend::Gpu gpu = backend::gpu(device);
  const plan::Card* card = plan::match_card(gpu.name);
  if (card == nullptr) card = plan::nearest_card(gpu.sm, gpu.multiprocessors);
  if (card == nullptr) card = &plan::cards().back();
  return plan::expect(*card);
}

plan::Calibration stored(const std::string& path, const std::string& device) {
  plan::Calibration calibration = plan::read_calibration(path);
  if (calibration.device != device)
    fail(Status::kInvalidArgument, "{}: device: expected a calibration of {}, got one of {}", path, device,
         calibration.device);
  return calibration;
}

plan::Calibration calibration_of(const backend::DeviceChoice& device, const std::string& file) {
  const std::string name = calibration_name(device);
  if (!file.empty()) return stored(file, name);
  const std::string path = plan::default_calibration_path(name);
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return expected(device);
  try {
    return stored(path, name);
  } catch (const Error& e) {
    log("h3stream: {}; ignored, `h3stream calibrate` replaces it", e.what());
    return expected(device);
  }
}

}  // namespace

std::string calibration_name(const backend::DeviceChoice& device) {
  return device.on_cpu() ? "cpu" : backend::gpu(device).name;
}

Machine machine_of(const backend::DeviceChoice& device, const std::string& calibration_file) {
  Machine machine{calibration_name(device), calibration_of(device, calibration_file),
                  backend::device_is_host(device), backend::default_device_budget(device)};
  if (const auto context = backend::context_bytes(device))
    machine.calibration.context_bytes = *context + backend::kLoadedLaterBytes;
  // The driver made this process's context before it said what is free.
  if (!device.on_cpu()) machine.device_bytes += machine.context_bytes();
  return machine;
}

Machine card_machine(const std::string& name) {
  const plan::Card* card = plan::find_card(name);
  if (card == nullptr)
    fail(Status::kInvalidArgument, "[plan] expected --gpu auto, cpu or one of {}, got \"{}\"",
         plan::card_names(), name);
  return {card->name, plan::expect(*card), false, plan::usable_bytes(*card)};
}

bool file_stays_cached(std::uint64_t file_bytes, std::int64_t ram_bytes) {
  const auto physical = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                        static_cast<std::uint64_t>(::sysconf(_SC_PAGE_SIZE));
  return file_bytes + static_cast<std::uint64_t>(ram_bytes) <= physical;
}

}  // namespace h3s::cli
