// JSON out of files: the tags and metadata texts that checkpoints carry.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace h3s::io {

// `text` with control bytes, DEL and backslashes escaped and cut after 200 bytes, so that a name out of a
// broken file can neither break a message into lines nor flood a terminal.
std::string printable(std::string_view text);

// The JSON object in `text`. Stricter than the library's own parse: a key given twice, nesting deeper than
// 32, a NUL byte or anything after the object is an error. Throws Error(kBadFile) with the text "WHERE:
// reason", where WHERE names file and key.
nlohmann::json parse_json_object(std::string_view text, const std::string& where);

}  // namespace h3s::io
