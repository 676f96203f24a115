// The page of a ledger: one HTML file with everything in it, for a browser without a network.
#pragma once

#include <string>

#include "ledger/reader.h"

namespace h3s::ledger {

// The files of src/ledger/page with the ledger's numbers in them.
std::string page_html(const Ledger& ledger);

// Reads DIR/ledger.jsonl and writes DIR/index.html anew. Throws as read_ledger, and Error(kIo).
void write_page(const std::string& directory);

}  // namespace h3s::ledger
