// What the GPU's management library tells of clocks and power; loaded when asked, absence is an answer.
#pragma once

#include <nlohmann/json.hpp>

namespace h3s::bench {

// {"driver": "580.159.04", "sm_mhz": 1980, "memory_mhz": 3201, "power_w": 650.2, "temperature_c": 51} of the
// GPU that the library counts as number `device`; fields that cannot be read are left out. {"missing": why}
// without the library.
nlohmann::json gpu_state(int device);

}  // namespace h3s::bench
