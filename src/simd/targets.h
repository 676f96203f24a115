// Instruction sets that vector code is compiled for. Include before any Highway header.
//
// Only sets with a fused multiply-add qualify: without one the vector code could not round as the definitions
// do.
#pragma once

#define HWY_WANT_AVX3_DL        // the AVX-512 level whose processors have VNNI
#define HWY_DISABLE_PCLMUL_AES  // x86-64-v3 does not promise them, and nothing here needs them
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SCALAR | HWY_EMU128)
