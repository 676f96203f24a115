// Elements of rows: widening, rounding, and eight of them at a time.
//
// float holds every value in arithmetic; T (bf16, fp16 or float) is how memory holds it. Rounding is to
// nearest even, equal to base/float16.h for every value but a NaN's payload.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace h3s::cuda::device {

constexpr int kVector = 8;  // 16 bytes of a 16-bit type, the widest access of a thread

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}

template <typename T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(x);
  if constexpr (std::is_same_v<T, __half>) return __float2half_rn(x);
  if constexpr (std::is_same_v<T, float>) return x;
}

template <typename T>
__device__ __forceinline__ float round_to(float x) {
  return to_float(from_float<T>(x));
}

// The smaller one; NaN when either is.
__device__ __forceinline__ float min_or_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
#else
  return a < b || a != a ? a : b;
#endif
}

// 1 / x within an ulp; subnormal ones, in or out, are zero.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}

// The two halves of a word that holds two bf16.
__device__ __forceinline__ float low_bf16(uint32_t word) {
  return __uint_as_float(word << 16);
}
__device__ __forceinline__ float high_bf16(uint32_t word) {
  return __uint_as_float(word & 0xffff0000u);
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Eight elements as they lie in memory.
template <typename T>
struct Packed;
template <>
struct Packed<__nv_bfloat16> {
  uint4 words;
};
template <>
struct Packed<float> {
  float4 low, high;
};

__device__ __forceinline__ void unpack(const Packed<__nv_bfloat16>& p, float (&v)[kVector]) {
  v[0] = low_bf16(p.words.x), v[1] = high_bf16(p.words.x), v[2] = low_bf16(p.words.y),
  v[3] = high_bf16(p.words.y);
  v[4] = low_bf16(p.words.z), v[5] = high_bf16(p.words.z), v[6] = low_bf16(p.words.w),
  v[7] = high_bf16(p.words.w);
}
__device__ __forceinline__ void unpack(const Packed<float>& p, float (&v)[kVector]) {
  v[0] = p.low.x, v[1] = p.low.y, v[2] = p.low.z, v[3] = p.low.w;
  v[4] = p.high.x, v[5] = p.high.y, v[6] = p.high.z, v[7] = p.high.w;
}

__device__ __forceinline__ void pack(const float (&v)[kVector], Packed<__nv_bfloat16>& p) {
  p.words =
      make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}
__device__ __forceinline__ void pack(const float (&v)[kVector], Packed<float>& p) {
  p.low = make_float4(v[0], v[1], v[2], v[3]);
  p.high = make_float4(v[4], v[5], v[6], v[7]);
}

// How a value is used: kStream data passes by once and stays out of L1; kReuse data is shared by neighbouring
// rows and only read during the launch; kPlain is any other, shared memory included.
enum class Use { kStream, kReuse, kPlain };

template <Use kUse, typename V>
__device__ __forceinline__ V load_words(const V* p) {
  if constexpr (kUse == Use::kStream) return __ldcg(p);
  if constexpr (kUse == Use::kReuse) return __ldg(p);
  if constexpr (kUse == Use::kPlain) return *p;
}

// Elements [0, left) of a vector at p, the missing ones zero. kWide: all eight exist and p is 16-byte
// aligned.
template <bool kWide, Use kUse, typename T>
__device__ __forceinline__ Packed<T> load(const T* p, int64_t left) {
  Packed<T> packed;
  if constexpr (kWide) {
    if constexpr (std::is_same_v<T, float>) {
      packed.low = load_words<kUse>(reinterpret_cast<const float4*>(p));
      packed.high = load_words<kUse>(reinterpret_cast<const float4*>(p) + 1);
    } else {
      packed.words = load_words<kUse>(reinterpret_cast<const uint4*>(p));
    }
  } else {
    float v[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) v[i] = i < left ? to_float(p[i]) : 0.0f;
    pack(v, packed);
  }
  return packed;
}

template <bool kWide, Use kUse, typename T>
__device__ __forceinline__ void load(const T* p, int64_t left, float (&v)[kVector]) {
  unpack(load<kWide, kUse>(p, left), v);
}

// Stores elements [0, left), each rounded to T.
template <bool kWide, typename T>
__device__ __forceinline__ void store(const float (&v)[kVector], T* p, int64_t left) {
  if constexpr (kWide) {
    Packed<T> packed;
    pack(v, packed);
    if constexpr (std::is_same_v<T, float>) {
      reinterpret_cast<float4*>(p)[0] = packed.low;
      reinterpret_cast<float4*>(p)[1] = packed.high;
    } else {
      *reinterpret_cast<uint4*>(p) = packed.words;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (i < left) p[i] = from_float<T>(v[i]);
  }
}

}  // namespace h3s::cuda::device
