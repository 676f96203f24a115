// What stands behind an h3s_context, and how a call on it becomes a status.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <string>

#include "backend/select.h"
#include "base/error.h"
#include "h3stream/h3stream.h"
#include "kernels/backend.h"
#include "mem/accountant.h"

struct h3s_context {
  h3s_context(const h3s::backend::DeviceChoice& device, std::string device_name);

  const std::string device, kernels;
  h3s::mem::Accountant accountant;
  std::unique_ptr<h3s::kernels::Backend> backend;
  const std::string description;
  std::string last_error;
};

namespace h3s::capi {

h3s_status status_of(Status status) noexcept;

// Where the reason of a failure goes: the context's text, or without a context this thread's.
std::string& error_text(h3s_context* context) noexcept;

// Keeps `text`, or as much as there is memory for.
h3s_status refuse(h3s_context* context, h3s_status status, const char* text) noexcept;

// fn(), with every exception turned into a status and a text.
template <typename Fn>
h3s_status guarded(h3s_context* context, Fn&& fn) noexcept {
  try {
    fn();
    return H3S_OK;
  } catch (const Error& e) {
    return refuse(context, status_of(e.status()), e.what());
  } catch (const std::bad_alloc&) {
    return refuse(context, H3S_OVER_BUDGET, "the system has no memory left to give");
  } catch (const std::exception& e) {
    return refuse(context, H3S_INTERNAL, e.what());
  }
}

}  // namespace h3s::capi
