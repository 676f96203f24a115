// The commands of the `h3stream` program. Each adds its options to `app` and sets `run` when it is the one
// called.
//
// Data goes to stdout, logs and progress to stderr. Exit codes: 0 success, 1 a check failed, 2 bad usage or
// input, 3 over budget or out of memory, 4 input/output error, 5 internal error, 128 + signal stopped by it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace h3s::cli {

using Run = std::function<int()>;

void add_inspect(CLI::App& app, Run& run);
void add_convert(CLI::App& app, Run& run);
void add_synth(CLI::App& app, Run& run);
void add_plan(CLI::App& app, Run& run);
void add_run(CLI::App& app, Run& run);
void add_report(CLI::App& app, Run& run);
void add_verify(CLI::App& app, Run& run);
void add_calibrate(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);

}  // namespace h3s::cli
