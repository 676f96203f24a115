// The fast route of the activation quantisers: teams of warps that walk rows, a row in registers.
//
// A thread holds 128 neighbours of a row, two runs of 64, so that strides 1, 4 and 16 of the rotation are its
// own, half of stride 64 too, and the other half is an exchange with the next thread. A team takes as many
// rows at a time as leave few of its lanes idle (5376 columns are 42 threads: three rows in four warps), if
// they lie one after the other, or one.
// Each warp copies its part of the next rows to shared memory while it works on these; the copies are all
// that hides the latency of device memory, registers allow 12 warps on a multiprocessor.
//
// The bits are those of quantize_plain; what cannot change them is left out:
//   - Halving. Where all values of a row are multiples of 2^-145 (any bf16 is; a float of 2^-122 or more is),
//     every halving is exact and commutes with the roundings: the fast route works with v 2^stages and
//     divides by d 2^stages instead.
//   - The last stage's maximum: max(|f(p + r)|, |f(p - r)|) is f(|p| + |r|).
//   - The quotient's division: see Inverse.
//   - Range cases. A row with |v| 2^stages >= 2^110, a NaN, a float other than 0 below 2^-121 or what the
//     source calls unusual is done again by the plain route.
#pragma once

#include <cstdint>

#include "cp_async.cuh"
#include "named_barrier.cuh"
#include "quantize.cuh"

namespace h3s::cuda::device {

constexpr int kRun = 64;                   // neighbours
constexpr int kPart = 2 * kRun;            // of a thread
constexpr int kMaxTeams = 3;               // of a block
constexpr int kMaxTeamRows = 4;            // of a team at a time
constexpr int kPad = 16;                   // bytes from run to run: lanes 16 bytes apart in the banks
constexpr int kCodeStride = kPart + kPad;  // bytes of a thread's codes in shared memory
constexpr float kFastLimit = 0x1p110f;
constexpr float kNotDone = -1.0f;  // no scale is negative

template <int kGroup>
constexpr int kStages = kGroup == 256  ? 4
                        : kGroup == 64 ? 3
                        : kGroup == 16 ? 2
                        : kGroup == 4  ? 1
                                       : 0;

// What a launch decides, from the row's length, its type and the device alone.
struct TeamShape {
  int threads_per_row, rows, threads, teams;  // of a team; teams of a block
};

// Bytes from a thread's run to the next thread's.
template <typename Source>
constexpr int kRunStride = kRun* static_cast<int>(sizeof(typename Source::Element)) + kPad;

// Shared memory of a thread: kRunsInFlight runs of every input, and its codes.
template <typename Source>
constexpr int kThreadBytes = Source::kRunsInFlight* Source::kInputs* kRunStride<Source> + kCodeStride;

// Where a thread stands, in one register. It changes with every turn, so what follows from it is worked out
// where it is used: registers are short, and the compiler would hold all of it through the loop.
class Place {
 public:
  __device__ __forceinline__ explicit Place(const TeamShape& shape) {
    const uint32_t team = threadIdx.x / shape.threads, thread = threadIdx.x - team * shape.threads;
    bits_ = thread | thread / shape.threads_per_row << 12 | team << 24;
  }

  __device__ __forceinline__ int thread() const { return bits_ & 0xfff; }     // of the team
  __device__ __forceinline__ int row() const { return bits_ >> 12 & 0xfff; }  // of the team
  __device__ __forceinline__ int team() const { return bits_ >> 24 & 0xf; }   // of the block
  __device__ __forceinline__ int turn() const { return bits_ >> 28; }         // 0, 1, 2, 0, ...
  __device__ __forceinline__ int next_turn() const { return turn() == 2 ? 0 : turn() + 1; }
  __device__ __forceinline__ void take_turn() { bits_ += (next_turn() - turn()) << 28; }

  __device__ __forceinline__ int lane() const { return bits_ & 31; }
  __device__ __forceinline__ int first_of_warp() const { return bits_ & 0xfe0; }
  __device__ __forceinline__ int part(const TeamShape& shape) const {
    return thread() - row() * shape.threads_per_row;
  }
  __device__ __forceinline__ bool works(const TeamShape& shape) const { return row() < shape.rows; }

 private:
  uint32_t bits_;
};

__device__ __forceinline__ void team_sync(const Place& place, const TeamShape& shape) {
  named_barrier_sync(1 + place.team(), shape.threads);
}

// Starts the copies of run `run` of rows [row, row + rows), of which `rows` exist, maybe none, to `shared`:
// of the team, [kRunsInFlight][kInputs][threads][kRunStride]. A warp copies its own threads' runs, a lane 16
// bytes of several, neighbours of one run after the other, so that device memory sees whole lines.
template <typename Source>
__device__ __forceinline__ void start_run(const Source& source, int row, int rows, int run, int k,
                                          const Place& place, const TeamShape& shape, unsigned char* shared) {
  using T = typename Source::Element;
  constexpr int kChunks = kRun * static_cast<int>(sizeof(T)) / 16;  // of a run, and copies of a lane
  constexpr int kOwners = 32 / kChunks;                             // threads whose runs one copy serves
  const int chunk = place.lane() % kChunks, owner = place.first_of_warp() + place.lane() / kChunks;
  const int left = rows * k - owner * kPart;
  const T* src = source.data + row * source.stride + owner * kPart + run * kRun +
                 chunk * (16 / static_cast<int>(sizeof(T)));
  const uint32_t dst =
      static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + chunk * 16 +
      (run % Source::kRunsInFlight * Source::kInputs * shape.threads + owner) * kRunStride<Source>;
#pragma unroll
  for (int j = 0; j < kChunks; ++j)
    if (j * kOwners * kPart < left) {
      const T* p = src + j * kOwners * kPart;
      cp_async_16(dst + j * kOwners * kRunStride<Source>, p);
      if constexpr (Source::kInputs == 2)
        cp_async_16(dst + (shape.threads + j * kOwners) * kRunStride<Source>, p + k);
    }
  cp_async_commit();
}

// A run from shared memory.
template <typename T>
__device__ __forceinline__ void load_run(const T* run, float (&v)[kRun]) {
#pragma unroll
  for (int i = 0; i < kRun; i += kVector)
    load<true, Use::kPlain>(run + i, kVector, reinterpret_cast<float(&)[kVector]>(v[i]));
}

// The smallest magnitude but 0 of a thread's values so far, as 2 x its bits - 1: 0 comes out largest.
struct Smallest {
  uint32_t bits = 0xffffffffu;
  __device__ __forceinline__ void take(float v) { bits = min(bits, 2 * __float_as_uint(v) - 1); }
  __device__ __forceinline__ bool halves_exactly() const {
    return bits >= 2 * __float_as_uint(0x1p-121f) - 1;
  }
};

// The stages within a run, each times 2.
template <int kGroup>
__device__ __forceinline__ void rotate_run(float (&v)[kRun]) {
  if constexpr (kGroup >= 4) rotate_all<1>(v);
  if constexpr (kGroup >= 16) rotate_all<4>(v);
  if constexpr (kGroup >= 64) rotate_all<16>(v);
}

// The last stage of a rotation by 256, of a group that this thread and the next one hold: four runs x0 to x3,
// two each. From its own sum p and difference m every thread needs the other's m alone: s + e, s - e here,
// f + d, f - d there. Rounds to bf16 pairs; returns the largest magnitude's bits, above infinity's for NaN.
__device__ __forceinline__ uint32_t rotate_across(const float (&v)[2][kRun], uint32_t (&pairs)[2][kRun / 2]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kRun; i += 2) {
    float sum[2], difference[2], magnitude[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float p = __fadd_rn(v[0][i + j], v[1][i + j]), m = __fsub_rn(v[0][i + j], v[1][i + j]);
      const float r = __shfl_xor_sync(kAllLanes, m, 1);
      sum[j] = __fadd_rn(p, r), difference[j] = __fsub_rn(p, r), magnitude[j] = __fadd_rn(fabsf(p), fabsf(r));
    }
    largest = max(largest, max(__float_as_uint(magnitude[0]), __float_as_uint(magnitude[1])));
    pairs[0][i / 2] = pack_bf16(sum[0], sum[1]), pairs[1][i / 2] = pack_bf16(difference[0], difference[1]);
  }
  return largest;
}

// The same of a run that is done.
__device__ __forceinline__ uint32_t round_run(const float (&v)[kRun], uint32_t (&pairs)[kRun / 2]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kRun; i += 2) {
    largest = max(largest, max(__float_as_uint(fabsf(v[i])), __float_as_uint(fabsf(v[i + 1]))));
    pairs[i / 2] = pack_bf16(v[i], v[i + 1]);
  }
  return largest;
}

// The largest of each row of a team, in three turns: one is read, one is added to, one is being cleared.
struct RowMaxima {
  uint32_t bits[3][kMaxTeamRows];

  __device__ __forceinline__ void clear(const Place& place) {
    if (place.thread() < 3 * kMaxTeamRows)
      bits[place.thread() / kMaxTeamRows][place.thread() % kMaxTeamRows] = 0;
  }

  // Of the row of this thread; the whole team calls.
  __device__ __forceinline__ uint32_t reduce(uint32_t mine, const Place& place, const TeamShape& shape) {
    const int part = place.part(shape);
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint32_t other = __shfl_down_sync(kAllLanes, mine, distance);
      if (part + distance < shape.threads_per_row && place.lane() + distance < 32) mine = max(mine, other);
    }
    if (place.works(shape) && (place.lane() == 0 || part == 0))
      atomicMax(&bits[place.turn()][place.row()], mine);
    if (place.thread() < kMaxTeamRows) bits[place.next_turn()][place.thread()] = 0;
    team_sync(place, shape);
    return bits[place.turn()][min(place.row(), kMaxTeamRows - 1)];
  }
};

// Codes of a thread to shared memory, from there in whole lines to `codes`, of which the team has `count`.
__device__ __forceinline__ void store_codes(const uint32_t (&pairs)[2][kRun / 2], Inverse inverse,
                                            unsigned char* shared, const Place& place, int count,
                                            int8_t* codes) {
  uint4* mine = reinterpret_cast<uint4*>(shared + place.thread() * kCodeStride);
#pragma unroll
  for (int i = 0; i < kPart / 16; ++i) {
    const uint32_t* p = pairs[i / 4] + i % 4 * 8;
    mine[i] = make_uint4(four_codes(p[0], p[1], inverse), four_codes(p[2], p[3], inverse),
                         four_codes(p[4], p[5], inverse), four_codes(p[6], p[7], inverse));
  }
  __syncwarp();
  const int owner = place.first_of_warp() + place.lane() / 8, left = count - owner * kPart;
  const unsigned char* src = shared + owner * kCodeStride + place.lane() % 8 * 16;
  int8_t* dst = codes + owner * kPart + place.lane() % 8 * 16;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (j * 4 * kPart < left)
      *reinterpret_cast<uint4*>(dst + j * 4 * kPart) =
          *reinterpret_cast<const uint4*>(src + j * 4 * kCodeStride);
  __syncwarp();
}

// The rows of a team; true when rows were left for the plain route, marked by their scale. Source: `data`,
// `stride` in elements, take() turns a thread's run of every input into 64 values or says that they are
// unusual; kPrepares: prepare() works on the team's rows in shared memory before.
template <int kGroup, typename Source>
__device__ __forceinline__ bool quantize_team_rows(const Source& source, const TeamShape& shape, int m, int k,
                                                   unsigned char* shared, RowMaxima* maxima, int8_t* codes,
                                                   float* scales) {
  constexpr float kFactor = static_cast<float>(1 << kStages<kGroup>);
  constexpr bool kAskSmallest = !Source::kExactHalves && kGroup >= 4;
  constexpr int kPending = Source::kRunsInFlight - 1;
  Place place(shape);
  const int step = static_cast<int>(gridDim.x) * shape.teams * shape.rows;
  int row = (static_cast<int>(blockIdx.x) * shape.teams + place.team()) * shape.rows;
  const int input_bytes = shape.threads * kRunStride<Source>;
  const auto mine = [&] { return shared + place.team() * shape.threads * kThreadBytes<Source>; };
  const auto rows_at = [&](int at) { return min(max(m - at, 0), shape.rows); };
  const auto start = [&](int at, int run) {
    start_run(source, at, rows_at(at), run, k, place, shape, mine());
  };

  maxima[place.team()].clear(place);
#pragma unroll
  for (int run = 0; run < Source::kRunsInFlight; ++run) start(row, run);
  source.begin();
  team_sync(place, shape);
  bool left_rows = false;
  for (; row < m; row += step, place.take_turn()) {
    float v[2][kRun];
    uint32_t pairs[2][kRun / 2], largest = 0;
    bool usual = true;
    Smallest smallest;
#pragma unroll
    for (int run = 0; run < 2; ++run) {
      cp_async_wait<kPending>();
      __syncwarp();
      const int slot = run % Source::kRunsInFlight * Source::kInputs;
      usual &=
          source.take(mine() + slot * input_bytes + place.thread() * kRunStride<Source>, input_bytes,
                      place.works(shape), v[run]);
      __syncwarp();
      if (run == 0) start(kPending == 0 ? row : row + step, kPending == 0 ? 1 : 0);  // where run 0 was
      if constexpr (kAskSmallest) {
#pragma unroll
        for (int i = 0; i < kRun; ++i) smallest.take(v[run][i]);
      }
      rotate_run<kGroup>(v[run]);
      if constexpr (kGroup != 256) largest = max(largest, round_run(v[run], pairs[run]));
    }
    if constexpr (kGroup == 256) largest = rotate_across(v, pairs);
    start(row + step, kPending == 0 ? 0 : 1);  // where run 1 was; not before, when registers are full
    if (!usual || (kAskSmallest && !smallest.halves_exactly())) largest = __float_as_uint(kFastLimit);
    largest = maxima[place.team()].reduce(largest, place, shape);

    const bool fast = largest < __float_as_uint(kFastLimit), exists = place.row() < rows_at(row);
    const float scale = row_scale(__fmul_rn(__uint_as_float(largest), 1.0f / kFactor));
    if (exists && place.part(shape) == 0) scales[row + place.row()] = fast ? scale : kNotDone;
    left_rows |= exists && !fast;
    store_codes(pairs, inverse_of(__fmul_rn(row_divisor(scale), kFactor)),
                mine() + Source::kRunsInFlight * Source::kInputs * input_bytes, place, rows_at(row) * k,
                codes + int64_t{row} * k);
  }
  cp_async_wait<0>();
  return left_rows;
}

}  // namespace h3s::cuda::device
