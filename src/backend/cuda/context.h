// The driver's context of this process on a GPU: hundreds of megabytes that no allocator sees.
#pragma once

namespace h3s::cuda {

// Makes the context, once a device, notes what it took (cuda::context_bytes) and makes the device the one
// this thread's calls go to. Throws Error(kOverBudget) when the card has not the memory for it, kUnsupported
// as require_device. Thread-safe.
void make_context(int device);

}  // namespace h3s::cuda
