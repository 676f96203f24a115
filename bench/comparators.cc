// The comparators as the benches see them: forwarded to the module beside the program, or missing with the
// reason.
#include "comparators.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/error.h"
#include "comparator_module.h"

namespace h3s::bench {
namespace {

struct Loaded {
  const ComparatorModule* module = nullptr;
  std::string missing;  // why, when null
};

// Loaded once, on first use; stays loaded: the libraries own threads.
const Loaded& loaded() {
  static const Loaded result = []() -> Loaded {
    const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libh3s_comparators.so";
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return {nullptr, dlerror()};
    const auto entry = reinterpret_cast<ComparatorEntry>(dlsym(library, kComparatorSymbol));
    if (entry == nullptr) return {nullptr, path.string() + " is not the comparators' module"};
    return {entry(), ""};
  }();
  return result;
}

const ComparatorModule& need(bool ComparatorModule::*has, const char* name) {
  const ComparatorModule* module = loaded().module;
  if (module == nullptr || !(module->*has)) fail(Status::kUnsupported, "[bench] {} is missing", name);
  return *module;
}

nlohmann::json describe_with(const char* (*ComparatorModule::*describe)()) {
  if (loaded().module == nullptr) return {{"missing", loaded().missing}};
  return nlohmann::json::parse((loaded().module->*describe)());
}

}  // namespace

namespace openblas {

bool available() {
  return loaded().module != nullptr && loaded().module->has_openblas;
}
nlohmann::json describe() {
  return describe_with(&ComparatorModule::describe_openblas);
}
void set_num_threads(int num_threads) {
  if (available()) loaded().module->set_num_threads(num_threads);
}
void sgemm(const float* x, const float* w, float* y, std::int64_t m, std::int64_t n, std::int64_t k) {
  need(&ComparatorModule::has_openblas, "OpenBLAS").sgemm(x, w, y, m, n, k);
}

}  // namespace openblas

namespace onednn {

struct Int8Matmul::State {
  void* matmul = nullptr;
};

bool available() {
  return loaded().module != nullptr && loaded().module->has_onednn;
}
nlohmann::json describe() {
  return describe_with(&ComparatorModule::describe_onednn);
}

Int8Matmul::Int8Matmul(const std::uint8_t* x, const std::int8_t* w, std::int32_t* y, std::int64_t m,
                       std::int64_t n, std::int64_t k, int num_threads)
    : state_(std::make_unique<State>()) {
  state_->matmul = need(&ComparatorModule::has_onednn, "oneDNN").create_matmul(x, w, y, m, n, k, num_threads);
}
Int8Matmul::~Int8Matmul() {
  loaded().module->destroy_matmul(state_->matmul);
}
void Int8Matmul::run() {
  loaded().module->run_matmul(state_->matmul);
}
std::string Int8Matmul::implementation() const {
  return loaded().module->matmul_implementation(state_->matmul);
}

}  // namespace onednn

}  // namespace h3s::bench
