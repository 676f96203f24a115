#include "capi/context.h"

#include "capi/params.h"

h3s_context::h3s_context(const h3s::backend::DeviceChoice& choice, std::string device_name)
    : device(std::move(device_name)),
      kernels(h3s::backend::kernels_name(choice)),
      accountant(h3s::backend::make_allocator(choice)),
      backend(h3s::backend::make_backend(choice, accountant)),
      description(backend->name()) {}

namespace h3s::capi {
namespace {

constexpr const char* kCreate = "h3s_context_create";

h3s_context_params default_context() {
  return {sizeof(h3s_context_params), "auto", 0, H3S_KERNELS_FAST, 0, nullptr};
}

backend::DeviceChoice choose_device(const h3s_context_params& p) {
  if (p.device == nullptr) fail(Status::kInvalidArgument, "[{}] device must not be null", kCreate);
  if (p.num_threads < 0)
    fail(Status::kInvalidArgument, "[{}] num_threads must be 0 (all) or more, got {}", kCreate,
         p.num_threads);
  if (p.kernels < H3S_KERNELS_FAST || p.kernels > H3S_KERNELS_REFERENCE)
    fail(Status::kInvalidArgument, "[{}] kernels must be 0 (fast), 1 (portable) or 2 (reference), got {}",
         kCreate, p.kernels);
  backend::DeviceChoice choice = backend::parse_device(p.device, p.num_threads);
  if (choice.on_cpu()) {
    if (p.use_stream != 0) fail(Status::kUnsupported, "[{}] the CPU runs on no stream", kCreate);
    return choice;
  }
  choice.portable = p.kernels == H3S_KERNELS_PORTABLE;
  choice.reference = p.kernels == H3S_KERNELS_REFERENCE;
  if (p.use_stream != 0) choice.compute_stream = p.stream;
  return choice;
}

std::string name_of(const backend::DeviceChoice& choice) {
  return choice.on_cpu() ? "cpu" : fmt::format("cuda:{}", choice.cuda);
}

}  // namespace

h3s_status status_of(Status status) noexcept {
  switch (status) {
    case Status::kInvalidArgument:
      return H3S_INVALID_ARGUMENT;
    case Status::kBadFile:
      return H3S_BAD_FILE;
    case Status::kUnsupported:
      return H3S_UNSUPPORTED;
    case Status::kOverBudget:
      return H3S_OVER_BUDGET;
    case Status::kIo:
      return H3S_IO;
    case Status::kInternal:
      return H3S_INTERNAL;
  }
  return H3S_INTERNAL;
}

std::string& error_text(h3s_context* context) noexcept {
  thread_local std::string text;
  return context == nullptr ? text : context->last_error;
}

h3s_status refuse(h3s_context* context, h3s_status status, const char* text) noexcept {
  try {
    error_text(context) = text;
  } catch (...) {
    error_text(context).clear();
  }
  return status;
}

}  // namespace h3s::capi

using namespace h3s::capi;

const char* h3s_version(void) {
  return H3S_VERSION;
}

const char* h3s_status_name(h3s_status status) {
  switch (status) {
    case H3S_OK:
      return "ok";
    case H3S_INVALID_ARGUMENT:
      return "invalid argument";
    case H3S_BAD_FILE:
      return "bad file";
    case H3S_UNSUPPORTED:
      return "unsupported";
    case H3S_OVER_BUDGET:
      return "over budget";
    case H3S_IO:
      return "input/output";
    case H3S_INTERNAL:
      return "internal";
  }
  return "unknown status";
}

const char* h3s_last_error(const h3s_context* context) {
  return error_text(const_cast<h3s_context*>(context)).c_str();
}

h3s_status h3s_context_params_init(h3s_context_params* params, size_t size) {
  return guarded(nullptr, [&] { init_params("h3s_context_params", params, size, default_context()); });
}

h3s_status h3s_context_create(const h3s_context_params* params, h3s_context** context) {
  return guarded(nullptr, [&] {
    if (context == nullptr)
      h3s::fail(h3s::Status::kInvalidArgument, "[{}] context must not be null", kCreate);
    *context = nullptr;
    const auto choice = choose_device(read_params("h3s_context", params, default_context()));
    *context = new h3s_context(choice, name_of(choice));
  });
}

void h3s_context_destroy(h3s_context* context) {
  delete context;
}

const char* h3s_context_device(const h3s_context* context) {
  return context == nullptr ? "" : context->device.c_str();
}

const char* h3s_context_describe(const h3s_context* context) {
  return context == nullptr ? "" : context->description.c_str();
}

const char* h3s_context_kernels(const h3s_context* context) {
  return context == nullptr ? "" : context->kernels.c_str();
}

h3s_status h3s_context_synchronize(h3s_context* context) {
  return guarded(context, [&] {
    if (context == nullptr)
      h3s::fail(h3s::Status::kInvalidArgument, "[h3s_context_synchronize] context must not be null");
    context->backend->sync(context->backend->record(h3s::kernels::Queue::kCompute));
  });
}
