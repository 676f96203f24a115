// The explicit dials of a run: which schedule, how large each chunk.
#pragma once

#include <cstdint>
#include <string>

namespace h3s::exec {

enum class Schedule { kResident, kHeadGroups, kFlat };
const char* schedule_name(Schedule schedule);          // "resident", "head-groups", "flat"
Schedule schedule_from_name(const std::string& name);  // throws Error(kInvalidArgument) listing the names

// Chunks are rows (tokens); 0 means the whole sequence at once. A chunk never exceeds the sequence.
struct Dials {
  Schedule schedule = Schedule::kResident;
  std::int64_t head_group = 8;       // heads attended at a time; head-groups and flat only
  std::int64_t q_chunk = 2048;       // queries attended at a time
  std::int64_t kv_chunk = 2048;      // rows projected to q, k, v at a time
  std::int64_t mlp_chunk = 2048;     // rows of out_proj and MLP at a time
  std::int64_t head_chunk = 2048;    // rows of the output heads at a time
  std::int64_t resident_blocks = 0;  // blocks whose weights stay on the device once they are there
  std::int64_t weight_slots = 2;     // slots the other blocks pass through; 1 where the device is the host
  std::int64_t min_tokens = 0;  // a sequence shorter than this is not chunked at all: resident, whole-length
  bool attention_out_on_device =
      false;                   // head-groups: keep O (14 kB a token) on the device instead of the host
  bool project_ahead = false;  // flat: q, k, v of the next heads between the query chunks of the current ones
  bool keep_projection_input =
      false;  // head-groups, flat: qkv_proj's input (int8: 5.4 kB a token) is kept for the groups to come

  std::string describe() const;  // "flat g=8 q=2048 kv=2048 mlp=2048 head=2048"
};

}  // namespace h3s::exec
