// The folder of one run's ledger: DIR/ledger.jsonl, written as the run goes, and DIR/index.html.
#pragma once

#include <string>

namespace h3s::ledger {

class Directory {
 public:
  // Makes `path` where it is not there and claims both names in it, so that no other run can. Throws
  // Error(kInvalidArgument) when either name exists, Error(kIo) when the folder cannot be made or written.
  explicit Directory(const std::string& path);
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // Whole lines go to the file in one write: a kill loses nothing that was appended. Throws Error(kIo).
  void append(const std::string& lines);

  const std::string& path() const { return path_; }
  std::string page_path() const;

 private:
  std::string path_, ledger_path_;
  int fd_ = -1;
};

}  // namespace h3s::ledger
