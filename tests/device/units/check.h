// Just enough to test with: TEST(name) { CHECK(condition); } and a main that runs them all.
#pragma once

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "fail.h"

namespace check {

inline int num_failures = 0;

struct Case {
  using Body = void (*)();
  Case(const char* name, Body body) {
    all().push_back({name, body});
  }
  static std::vector<std::pair<const char*, Body>>& all() {
    static std::vector<std::pair<const char*, Body>> cases;
    return cases;
  }
};

inline void report(bool is_good, const char* file, int line, const char* what) {
  if (!is_good) {
    ++num_failures;
    std::printf("%s:%d: not so: %s (last error: %s)\n", file, line, what, prge::last_error());
  }
}

// A folder of this process, removed when it ends.
class Scratch {
 public:
  Scratch() {
    char pattern[] = "/tmp/prge-unit-XXXXXX";
    path_ = mkdtemp(pattern);
  }
  ~Scratch() {
    std::filesystem::remove_all(path_);
  }
  std::string file(const char* name) const {
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

inline std::string scratch(const char* name) {
  static const Scratch folder;
  return folder.file(name);
}

} // namespace check

#define CHECK(condition) check::report(static_cast<bool>(condition), __FILE__, __LINE__, #condition)
#define TEST(name)                                          \
  static void test_##name();                                \
  static const check::Case case_##name(#name, test_##name); \
  static void test_##name()

int main() {
  for (const auto& [name, body] : check::Case::all()) {
    body();
    std::printf("%s\n", name);
  }
  return check::num_failures == 0 && !check::Case::all().empty() ? 0 : 1;
}
