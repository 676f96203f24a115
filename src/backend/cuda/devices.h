// Choosing the device a thread's CUDA calls go to, and refusing one that cannot be used.
#pragma once

namespace h3s::cuda {

// Makes `device` the one this thread's CUDA calls go to. Cheap when it is already.
void use_device(int device);

// Throws Error(kUnsupported), in words for a user, when there is no such device or its driver cannot serve
// this build.
void require_device(int device);

}  // namespace h3s::cuda
