// h3stream: runs the MiniMax-H3 video+audio diffusion transformer inside a stated number of bytes.
#include <exception>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "commands.h"
#include "log.h"
#include "standard_streams.h"

namespace {

constexpr int kBadInput = 2, kOverBudget = 3, kIoError = 4, kInternalError = 5;

int exit_code(h3s::Status status) {
  switch (status) {
    case h3s::Status::kInvalidArgument:
    case h3s::Status::kBadFile:
    case h3s::Status::kUnsupported:
      return kBadInput;
    case h3s::Status::kOverBudget:
      return kOverBudget;
    case h3s::Status::kIo:
      return kIoError;
    case h3s::Status::kInternal:
      return kInternalError;
  }
  return kInternalError;
}

int refuse(int code, const char* reason) {
  h3s::cli::log("h3stream: {}", reason);
  return code;
}

int run_program(int argc, char** argv) {
  CLI::App app("h3stream: MiniMax-H3 video+audio diffusion, exact and memory-bounded");
  app.require_subcommand(1);
  app.set_version_flag("--version", H3S_VERSION);
  app.get_formatter()->column_width(34);
  h3s::cli::Run run;
  h3s::cli::add_plan(app, run);
  h3s::cli::add_run(app, run);
  h3s::cli::add_report(app, run);
  h3s::cli::add_verify(app, run);
  h3s::cli::add_inspect(app, run);
  h3s::cli::add_convert(app, run);
  h3s::cli::add_synth(app, run);
  h3s::cli::add_calibrate(app, run);
  h3s::cli::add_bench(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    h3s::cli::log("h3stream: {} (see --help)", e.what());
    return kBadInput;
  }
  return run();
}

int run_and_report(int argc, char** argv) {
  try {
    return run_program(argc, argv);
  } catch (const h3s::Error& e) {
    return refuse(exit_code(e.status()), e.what());
  } catch (const nlohmann::json::exception& e) {
    return refuse(kBadInput, e.what());
  } catch (const std::bad_alloc&) {
    return refuse(kOverBudget, "the system has no memory left to give");
  } catch (const std::system_error& e) {  // of the file system too
    return refuse(kIoError, e.what());
  } catch (const std::exception& e) {
    return refuse(kInternalError, e.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  h3s::cli::secure_standard_streams();
  const int code = run_and_report(argc, argv);
  if (!h3s::cli::flush_stdout() && code == 0) return refuse(kIoError, "stdout: cannot be written");
  return code;
}
