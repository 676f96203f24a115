// The index of a checkpoint that lies in several safetensors files, as publishers' loaders read it: a JSON
// object whose `weight_map` names the file of every key.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace h3s::io {

// By its name: it ends in ".index.json".
bool is_safetensors_index(std::string_view path);

// Key to the name of its file, which lies beside the index. Throws Error(kIo) when it cannot be read and
// Error(kBadFile), naming file, key and reason, for one that is no index, is larger than a header may be, or
// names a file outside its own folder.
std::map<std::string, std::string> read_safetensors_index(const std::string& path);

}  // namespace h3s::io
