#include "processor.h"

#include <sys/utsname.h>

#include <fstream>
#include <set>

namespace prge {

std::string processor() {
  struct utsname machine;
  std::string out = ::uname(&machine) == 0 ? machine.machine : "";
  std::set<std::string> lines;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    for (const char* field : {"vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part"}) {
      if (line.rfind(field, 0) == 0) {
        lines.insert(line);
      }
    }
  }
  for (const std::string& line : lines) {
    out += "\n" + line;
  }
  return out;
}

} // namespace prge
