// h3stream: runs the MiniMax-H3 video+audio diffusion transformer inside a stated number of bytes.
#include <exception>

#include "base/error.h"
#include "commands.h"

namespace {

int exit_code(h3s::Status status) {
  switch (status) {
    case h3s::Status::kInvalidArgument:
    case h3s::Status::kBadFile:
    case h3s::Status::kUnsupported:
      return 2;
    case h3s::Status::kOverBudget:
      return 3;
    case h3s::Status::kIo:
      return 4;
    case h3s::Status::kInternal:
      return 5;
  }
  return 5;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("h3stream: MiniMax-H3 video+audio diffusion, exact and memory-bounded");
  app.require_subcommand(1);
  app.set_version_flag("--version", H3S_VERSION);
  app.get_formatter()->column_width(34);
  h3s::cli::Run run;
  h3s::cli::add_run(app, run);
  h3s::cli::add_verify(app, run);
  h3s::cli::add_inspect(app, run);
  h3s::cli::add_synth(app, run);
  h3s::cli::add_bench(app, run);
  try {
    app.parse(argc, argv);
    return run();
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    fmt::print(stderr, "h3stream: {} (see --help)\n", e.what());
    return 2;
  } catch (const h3s::Error& e) {
    fmt::print(stderr, "h3stream: {}\n", e.what());
    return exit_code(e.status());
  } catch (const std::exception& e) {
    fmt::print(stderr, "h3stream: {}\n", e.what());
    return 5;
  }
}
