// The CPU backend: every op, vectorised and multi-threaded, with the bits of its definition.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "mem/accountant.h"

namespace h3s::cpu {

// A backend that runs ops on `num_threads` threads (0: as many as the machine has), the calling one included.
// Its workspace is allocated here, from Space::kDevice of `accountant`, which must outlive it; ops allocate
// nothing. Ops are called from one thread at a time and are finished when the call returns. Results do not
// depend on the number of threads. Throws kUnsupported on a processor without AVX2 and FMA, kOverBudget when
// the workspace does not fit.
std::unique_ptr<kernels::Backend> make_backend(int num_threads, mem::Accountant& accountant);

// What make_backend allocates. 0 threads: as make_backend.
std::int64_t workspace_bytes(int num_threads);

// A backend whose every op is the plain-loop definition. No workspace; slow.
std::unique_ptr<kernels::Backend> make_definition_backend();

// The instruction set in use, in Highway's words: "AVX2", "AVX3", "AVX3_DL".
std::string instruction_set();

}  // namespace h3s::cpu
