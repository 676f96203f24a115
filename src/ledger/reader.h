// A ledger file, read back. Strict: every line is what docs/ledger.md says, or an error names it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ledger/lines.h"

namespace h3s::ledger {

struct Ledger {
  std::string path;
  Header header;
  std::vector<PhaseLine> phases;
  std::vector<Remark> remarks;
  std::optional<Closing> closing;  // empty: the run was killed, or still runs
  bool truncated = false;          // the last line was cut off, and is left out
};

// "DIR/ledger.jsonl"
std::string ledger_path(const std::string& directory);

// Throws Error(kIo) when there is no such file, Error(kBadFile) "PATH:LINE: reason" for one that breaks the
// format. A last line without its end, as a kill leaves it, is tolerated.
Ledger read_ledger(const std::string& path);

}  // namespace h3s::ledger
