#include "ledger/system_reading.h"

#include <unistd.h>

#include <fstream>
#include <sstream>

namespace h3s::ledger {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

double seconds_of_ticks(double ticks) {
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// "RssAnon:     1234 kB"
std::int64_t status_bytes(const std::string& status, const std::string& name) {
  const std::size_t at = status.find("\n" + name + ":");
  if (at == std::string::npos) return 0;
  std::istringstream value(status.substr(at + name.size() + 2));
  std::int64_t kib = 0;
  value >> kib;
  return kib * 1024;
}

// /proc/self/stat: the name in parentheses may hold anything; from the state on, fields are numbers 3, 4, ...
void read_own_stat(const std::string& text, MachineLoad& load) {
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state;
  fields >> state;
  double value = 0, ticks = 0;
  for (int number = 4; number <= 15 && fields >> value; ++number) {
    if (number == 12) load.major_faults = static_cast<std::int64_t>(value);
    if (number == 14 || number == 15) ticks += value;  // user, system
  }
  load.own_cpu_s = seconds_of_ticks(ticks);
}

// "cpu  user nice system idle iowait irq softirq steal ...": guests are in user and nice already.
void read_all_cpus(const std::string& text, MachineLoad& load) {
  std::istringstream fields(text);
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  fields >> name >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
  load.all_cpu_s = seconds_of_ticks(user + nice + system + irq + softirq);
  load.steal_s = seconds_of_ticks(steal);
}

std::optional<std::int64_t> read_throttles(const std::string& root) {
  std::ifstream file(root + "/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count");
  std::int64_t count = 0;
  return file >> count ? std::optional(count) : std::nullopt;
}

}  // namespace

ProcessMemory read_process_memory(const std::string& root) {
  const std::string status = contents(root + "/proc/self/status");
  return {status_bytes(status, "RssAnon"), status_bytes(status, "RssFile"), status_bytes(status, "RssShmem"),
          status_bytes(status, "VmSwap")};
}

MachineLoad read_machine_load(const std::string& root) {
  MachineLoad load;
  read_own_stat(contents(root + "/proc/self/stat"), load);
  read_all_cpus(contents(root + "/proc/stat"), load);
  std::istringstream(contents(root + "/proc/loadavg")) >> load.load_1min;
  load.cpu_throttles = read_throttles(root);
  return load;
}

}  // namespace h3s::ledger
