// The files of src/ledger/page, built into the program (cmake/Embed.cmake writes page_files.cc).
#pragma once

#include <string_view>

namespace h3s::ledger {

// By name, for instance "page.css"; empty when there is no such file.
std::string_view page_file(std::string_view name);

}  // namespace h3s::ledger
