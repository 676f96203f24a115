// Loads of matrix fragments from shared memory (sm_75+).
#pragma once

#include <cstdint>

namespace h3s::cuda::device {

// Four 8x8 matrices of 16-bit elements into r[0..3]; lanes 8i .. 8i + 7 give the shared addresses of the rows
// of matrix i. Lane (g, q) receives elements 2q, 2q + 1 of row g of each.
__device__ __forceinline__ void ldmatrix_x4(uint32_t* r, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same, each matrix transposed: lane (g, q) receives elements g of rows 2q, 2q + 1.
__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t* r, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

}  // namespace h3s::cuda::device
