#include "flags.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

bool parse_value(const char* text, double& out) {
  char* end = nullptr;
  out = std::strtod(text, &end);
  return end != text && *end == '\0';
}

bool parse_value(const char* text, int64_t& out) {
  char* end = nullptr;
  errno = 0;
  out = std::strtoll(text, &end, 10);
  return end != text && *end == '\0' && errno == 0;
}

bool parse_value(const char* text, uint64_t& out) {
  int64_t value = 0;
  const bool is_good = parse_value(text, value) && value >= 0;
  out = static_cast<uint64_t>(value);
  return is_good;
}

bool parse_value(const char* text, uint32_t& out) {
  uint64_t value = 0;
  const bool is_good = parse_value(text, value) && value <= UINT32_MAX;
  out = static_cast<uint32_t>(value);
  return is_good;
}

bool parse_value(const char* text, std::string& out) {
  out = text;
  return true;
}

bool parse_value(const char* text, std::vector<uint32_t>& out) {
  out.push_back(0);
  return parse_value(text, out.back());
}

bool set_value(const std::vector<Flag>& flags, const std::string& name, const char* value) {
  for (const Flag& each : flags) {
    if (name == each.name) {
      return each.set(each.field, value);
    }
  }
  return false;
}

bool asks_for_help(int argc, char** argv) {
  return argc == 2 && (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0);
}

namespace {

// The folder for files that can be made again; empty where there is none.
std::string cache_folder() {
  constexpr std::pair<const char*, const char*> kPlaces[] = {
      {"PRGEC_CACHE", ""}, {"XDG_CACHE_HOME", "/prgec"}, {"HOME", "/.cache/prgec"}};
  for (const auto& [variable, below] : kPlaces) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') {
      return std::string(value) + below;
    }
  }
  return "";
}

} // namespace

std::string packed_weights_folder(const std::string& flag) {
  if (flag == "off") {
    return "";
  }
  const std::string cache = flag.empty() ? cache_folder() : "";
  return cache.empty() ? flag : cache + "/packed";
}
