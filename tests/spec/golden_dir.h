// Where the reference vectors are: environment variable H3S_GOLDEN_DIR, else the directory given at configure
// time.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace h3s::test {

inline std::filesystem::path golden_dir() {
  const char* from_environment = std::getenv("H3S_GOLDEN_DIR");
  return from_environment != nullptr ? from_environment : H3S_GOLDEN_DIR;
}

}  // namespace h3s::test
