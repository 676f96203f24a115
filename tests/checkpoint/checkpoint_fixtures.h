// Where tests find golden files and write their own.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace h3s::checkpoint {

// The path of a golden file, from the environment variable H3S_GOLDEN_DIR or the directory configured with
// CMake; empty when it does not exist.
inline std::string golden_file(const std::string& name) {
  const char* from_environment = std::getenv("H3S_GOLDEN_DIR");
  const std::filesystem::path directory = from_environment != nullptr ? from_environment : H3S_GOLDEN_DIR;
  const std::filesystem::path path = directory / name;
  return std::filesystem::exists(path) ? path.string() : "";
}

}  // namespace h3s::checkpoint
