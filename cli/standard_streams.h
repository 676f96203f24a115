// What the program needs of stdin, stdout and stderr, whatever it was started with.
#pragma once

namespace h3s::cli {

// Puts /dev/null where a standard descriptor is closed, so that no file of ours can get its number and be
// written over by a message; writing to it still fails. Ignores SIGPIPE and SIGXFSZ: a reader that left or a
// file size limit is then an error of the write, with a message and an exit code. Call first in main.
void secure_standard_streams();

// Whether everything printed to stdout arrived. Call last in main.
bool flush_stdout();

}  // namespace h3s::cli
