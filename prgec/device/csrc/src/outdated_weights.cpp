#include "outdated_weights.h"

#include <dirent.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "files.h"
#include "packed_weights.h"

namespace prge {

namespace {

constexpr size_t kStem = 64; // a SHA-256

// Paths of the folder's weights, without what their files' names end with.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  while (const dirent* entry = open == nullptr ? nullptr : ::readdir(open.get())) {
    const std::string name = entry->d_name;
    const bool is_ours =
        name.size() > kStem && name.substr(kStem) == kSealSuffix && name.find_first_not_of("0123456789abcdef") == kStem;
    if (is_ours) {
      found.push_back(folder + "/" + name.substr(0, kStem));
    }
  }
  return found;
}

// The second line of a seal; empty where it says none, or none that can be looked up.
std::string program_of(const std::string& seal) {
  const size_t from = seal.find('\n');
  const size_t to = from == std::string::npos ? from : seal.find('\n', from + 1);
  const std::string program = to == std::string::npos ? "" : seal.substr(from + 1, to - from - 1);
  // A question mark may stand for a character that was not written down.
  return program[0] == '/' && program.find('?') == std::string::npos ? program : "";
}

bool is_outdated(const std::string& program, const struct stat& last_use) {
  struct stat info;
  if (::stat(program.c_str(), &info) != 0) {
    return errno == ENOENT || errno == ENOTDIR;
  }
  return last_use.st_mtime < info.st_mtime;
}

} // namespace

void remove_outdated(const std::string& folder) {
  for (const std::string& name : names_in(folder)) {
    const std::string path = name + kSealSuffix;
    struct stat last_use;
    File seal;
    std::string text;
    if (::lstat(path.c_str(), &last_use) != 0 || !S_ISREG(last_use.st_mode) || seal.open_locked(path) != Error::Ok ||
        seal.read(text) != Error::Ok) {
      continue;
    }
    const std::string program = program_of(text);
    if (!program.empty() && is_outdated(program, last_use)) {
      // The seal goes last: what is half gone has none, and is packed again.
      remove_file(name + kWeightsSuffix);
      remove_file(path);
    }
  }
}

} // namespace prge
