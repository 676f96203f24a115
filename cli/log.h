// Words for a person: stderr, where a failing write is nobody's error, and text made safe to show.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace h3s::cli {

// Best effort: a closed pipe or a full disk behind stderr loses the words, never the work.
void write_stderr(std::string_view text) noexcept;

// `text` with control bytes and DEL as escapes, so that a name out of a file or the file system can neither
// break a message into lines nor speak to the terminal. Unlike io::printable it cuts nothing and leaves
// backslashes alone: the text may hold names that are escaped already.
std::string one_line(std::string_view text);

// One line on stderr.
template <typename... Args>
void log(fmt::format_string<Args...> format, Args&&... args) {
  write_stderr(one_line(fmt::format(format, std::forward<Args>(args)...)) + '\n');
}

// For stdout and files. Paths need not be UTF-8, JSON must be: other bytes become U+FFFD.
template <typename Json>
std::string json_text(const Json& json, int indent = 2) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace h3s::cli
