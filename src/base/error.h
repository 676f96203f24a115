// Errors: one exception type with a status code; text is built with fmt.
//
// Messages are one line: the operation or file first, then what was expected, then what came.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace h3s {

enum class Status {
  kInvalidArgument,  // a caller's value is out of range or inconsistent
  kBadFile,          // a file breaks its format or lacks something
  kUnsupported,      // well formed, but not something this build can run
  kOverBudget,       // more memory would be needed than the budget allows
  kIo,               // the operating system refused
  kInternal,         // a broken invariant: a bug
};

class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  Status status() const { return status_; }

 private:
  Status status_;
};

template <typename... Args>
[[noreturn]] void fail(Status status, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(status, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace h3s

// An invariant that no input can break. The message names the place.
#define H3S_ASSERT(condition)                                                                               \
  do {                                                                                                      \
    if (!(condition))                                                                                       \
      ::h3s::fail(::h3s::Status::kInternal, "{}:{}: broken invariant: {}", __FILE__, __LINE__, #condition); \
  } while (false)
