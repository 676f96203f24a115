// Params structs of every version: read as the newest, whatever header the caller was built with.
#pragma once

#include <cstddef>
#include <cstring>

#include "base/error.h"

namespace h3s::capi {

// `defaults` into the first `size` bytes of *params: what the caller's header knows of the struct.
template <typename T>
void init_params(const char* name, T* params, std::size_t size, T defaults) {
  if (params == nullptr) fail(Status::kInvalidArgument, "[{}_init] params must not be null", name);
  if (size < sizeof(params->size) || size > sizeof(T))
    fail(Status::kInvalidArgument, "[{}_init] size must be {} to {} bytes, got {}", name,
         sizeof(params->size), sizeof(T), size);
  defaults.size = size;
  std::memcpy(params, &defaults, size);
}

// *params over `defaults`: fields that the caller's header does not know keep theirs.
template <typename T>
T read_params(const char* name, const T* params, T defaults) {
  if (params == nullptr) fail(Status::kInvalidArgument, "[{}] params must not be null", name);
  if (params->size < sizeof(params->size) || params->size > sizeof(T))
    fail(Status::kInvalidArgument,
         "[{}] params.size must be as {}_params_init sets it, {} bytes here, got {}", name, name, sizeof(T),
         params->size);
  std::memcpy(&defaults, params, params->size);
  return defaults;
}

}  // namespace h3s::capi
