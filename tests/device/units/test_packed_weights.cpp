// The test stands in for XNNPACK: it writes the file between `open` and `seal`.
#include <sys/stat.h>

#include "check.h"
#include "packed_weights.h"

using prge::PackedWeights;

static std::string warned;

static void observe(const char* line) {
  warned = line;
}

static bool has_warned(const char* text) {
  return warned.find(text) != std::string::npos;
}

static void write(const std::string& path, const std::string& text) {
  prge::AtomicFile file(path);
  CHECK(file.open() == prge::Error::Ok && file.write(text.data(), text.size()) == prge::Error::Ok);
  CHECK(file.commit() == prge::Error::Ok);
}

static std::string program(const char* name, const std::string& text) {
  const std::string path = check::scratch(name);
  write(path, text);
  return path;
}

// Where the packed weights of a program lie; empty where memory must do.
static std::string opened(const std::string& folder, const std::string& program) {
  PackedWeights weights(observe);
  warned.clear();
  weights.open(folder, program, "base");
  return weights.path();
}

static std::string packed(const std::string& folder, const std::string& program) {
  PackedWeights weights(observe);
  weights.open(folder, program, "base");
  write(weights.path(), "packed weights");
  weights.seal();
  return weights.path();
}

TEST(a_sealed_file_is_found_again) {
  const std::string folder = check::scratch("good/packed"), a = program("a", "program a"),
                    b = program("b", "program b");
  const std::string path = packed(folder, a);
  CHECK(opened(folder, a) == path && prge::is_file(path) && warned.empty());
  CHECK(!opened(folder, b).empty() && opened(folder, b) != path);
  struct stat info;
  CHECK(::stat(folder.c_str(), &info) == 0 && (info.st_mode & 0777) == 0700);
}

TEST(a_damaged_or_foreign_file_is_packed_again) {
  const std::string folder = check::scratch("damaged"), a = program("a", "program a");
  for (const char* damage : {"packed weight", "packed weightz", "something else altogether"}) {
    const std::string path = packed(folder, a);
    write(path, damage);
    CHECK(opened(folder, a) == path && !prge::is_file(path));
    CHECK(has_warned("the packed weights are damaged, packing them again"));
  }
}

TEST(what_was_never_sealed_is_packed_again) {
  const std::string folder = check::scratch("torn"), a = program("a", "program a");
  const std::string path = opened(folder, a);
  write(path, "half of it");
  CHECK(opened(folder, a) == path && !prge::is_file(path) && warned.empty());
}

TEST(one_process_has_the_file) {
  const std::string folder = check::scratch("two"), a = program("a", "program a");
  PackedWeights first(observe);
  first.open(folder, a, "base");
  CHECK(!first.path().empty());
  CHECK(
      opened(folder, a).empty() && has_warned("the packed weights are kept in memory: another process uses the file"));
}

TEST(folders_of_others_are_not_used) {
  const std::string folder = check::scratch("open"), a = program("a", "program a");
  CHECK(prge::make_folder(folder) == prge::Error::Ok && ::chmod(folder.c_str(), 0777) == 0);
  CHECK(opened(folder, a).empty() && has_warned("others can write to the folder"));
  CHECK(opened(a + "/below", a).empty() && has_warned("cannot make the folder"));
  CHECK(opened(check::scratch(std::string(240, 'x').c_str()), a).empty() && has_warned("is too long"));
}
