// How fast a machine is: the rates that an estimate of time is made from.
//
// Every call of an op costs its work over a rate, and a fixed part: tiles that are not full, waves that do
// not fill the device, a launch. docs/planning.md has the formulas.
#pragma once

#include <cstdint>
#include <string>

namespace h3s::plan {

// A linear layer of m rows, n outputs, k inputs takes 2 k ((m + extra_rows) n + extra_outputs) / ops seconds.
struct LinearRate {
  double ops = 0;            // operations a second
  double extra_rows = 0;     // what a call costs however few its rows are
  double extra_outputs = 0;  // what a call costs however few its outputs are
};

// q query rows x heads against s keys take 4 x 128 s max(q heads, min_rows) / ops seconds.
struct AttentionRate {
  double ops = 0;
  double min_rows = 0;  // rows of one head that fill the device
};

// Merging a LoRA of rank r into n weights takes n / weights + 2 n r / ops seconds, by all threads of the
// host.
struct MergeRate {
  double weights = 0;  // int8 weights a second dequantised and quantised again
  double ops = 0;      // operations of B . A a second
};

struct Calibration {
  std::string device;     // "NVIDIA H200", "cpu"
  bool measured = false;  // false: from published figures
  bool overlaps = false;  // copies run beside compute
  LinearRate int8, bf16, f32;
  AttentionRate attention_bf16, attention_f32;
  double row_bytes = 0;       // bytes a second of row ops, read and written
  double quantize_bytes = 0;  // bytes a second of the activation quantisers
  double call_seconds = 0;    // any other op's fixed cost
  double upload_bytes = 0;    // pinned host to device, bytes a second
  double download_bytes = 0;
  double copy_row_bytes = 0;  // what each row of a strided copy costs on top of its bytes
  double host_bytes = 0;      // one thread of the host from memory to memory, bytes a second
  double loading_bytes = 0;   // the loading threads from the page cache to where weights are uploaded from
  MergeRate merge;
  double file_bytes = 0;           // the same from a file that is not in the page cache
  std::int64_t context_bytes = 0;  // device memory the driver holds beside what is allocated
};

// Files: one JSON object, every field present, no other. Reading throws Error(kIo) when the file cannot be
// opened and Error(kBadFile) "PATH: KEY: reason" for anything that is not a calibration.
Calibration read_calibration(const std::string& path);
std::string calibration_text(const Calibration& calibration);

// Where `calibrate` writes and `run` looks: $XDG_CACHE_HOME (else $HOME/.cache)
// /h3stream/calibration-NAME.json, NAME the device with anything but letters and digits replaced by '-'.
// Empty when neither variable is set.
std::string default_calibration_path(const std::string& device);

}  // namespace h3s::plan
