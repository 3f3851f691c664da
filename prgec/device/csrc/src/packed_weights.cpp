#include "packed_weights.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "checksum.h"
#include "fail.h"
#include "outdated_weights.h"
#include "processor.h"
#include "program_file.h"
#include "utf8.h"

namespace prge {

namespace {

// XNNPACK's options hold as many characters, with the closing zero.
constexpr size_t kMaxPath = 255;
// Beyond the size of the program: layouts pad rows, and each weight begins on a page.
constexpr uint64_t kSpareBytes = uint64_t{64} << 20;

// The first line of a seal has the size of the file, which is quickly known, and its checksum. The second names
// the program, for people.
std::string head_of(const MappedFile& file) {
  return "prge-packed 1 " + std::to_string(file.size()) + " ";
}

std::string seal_of(const MappedFile& file) {
  char digits[16];
  snprintf(digits, sizeof(digits), "%08x\n", crc32(file.data(), file.size()));
  return head_of(file) + digits;
}

std::string absolute(const std::string& path) {
  char* found = ::realpath(path.c_str(), nullptr);
  std::string out = found == nullptr ? path : found;
  std::free(found);
  make_printable(out);
  return out;
}

// Write access to the folder decides which weights XNNPACK computes with.
Error check_owner(const std::string& folder) {
  struct stat info;
  const bool is_own = ::stat(folder.c_str(), &info) == 0 && info.st_uid == ::geteuid() && (info.st_mode & 022) == 0;
  return is_own ? Error::Ok
                : fail(
                      Error::AccessFailed, "others can write to the folder (%s). Hint: chmod 700, or name another",
                      folder.c_str());
}

// XNNPACK grows the file under a mapping, where a full disk ends the process.
Error check_space(const std::string& folder, uint64_t program_bytes) {
  struct statvfs info;
  const bool has_space = ::statvfs(folder.c_str(), &info) == 0 &&
      uint64_t{info.f_bavail} * info.f_frsize >= program_bytes + program_bytes / 2 + kSpareBytes;
  return has_space ? Error::Ok : fail(Error::AccessFailed, "the disk is too full (%s)", folder.c_str());
}

} // namespace

void PackedWeights::open(const std::string& folder, const std::string& program, const std::string& base) {
  if (take(folder, program, base) != Error::Ok) {
    warn("the packed weights are kept in memory", last_error());
    path_.clear();
    seal_.close();
    whole_.close();
  }
}

Error PackedWeights::take(const std::string& folder, const std::string& program, const std::string& base) {
  PRGE_TRY(make_folder(folder, 0700));
  PRGE_TRY(check_owner(folder));
  auto file = MappedFile::open(program);
  PRGE_TRY(file.error());
  const std::string key = fingerprint(**file).hex() + base + processor() + PRGE_EXECUTORCH_VERSION;
  const std::string name = folder + "/" + Sha256().update(key.data(), key.size()).finish().hex();
  path_ = name + kWeightsSuffix;
  program_ = absolute(program);
  if (path_.size() > kMaxPath) {
    return fail(Error::InvalidArgument, "the folder's path is too long (%s)", folder.c_str());
  }
  PRGE_TRY(seal_.open_locked(name + kSealSuffix));
  PRGE_TRY(drop_if_damaged());
  seal_.touch(); // says when it was last used
  // XNNPACK wants an exclusive lock to write. It knows one layout of a weight: of one that a program needs in two it
  // would append a copy at every start.
  if (is_file(path_)) {
    return whole_.open_shared(path_);
  }
  remove_outdated(folder); // a new file is to take their place
  return check_space(folder, (*file)->size());
}

// Another name keeps the old file for who has it mapped.
Error PackedWeights::drop_if_damaged() {
  std::string found;
  PRGE_TRY(seal_.read(found));
  auto file = MappedFile::open(path_);
  if (!file.ok() || found.rfind(seal_of(**file), 0) != 0) {
    if (!found.empty()) {
      warn("the packed weights are damaged, packing them again", path_.c_str());
    }
    remove_file(path_);
    PRGE_TRY(seal_.truncate(0));
  }
  return Error::Ok;
}

void PackedWeights::seal() {
  if (!path_.empty() && try_seal() != Error::Ok) {
    warn("the packed weights are not kept", last_error());
  }
}

Error PackedWeights::try_seal() {
  std::string found;
  PRGE_TRY(seal_.read(found));
  auto file = MappedFile::open(path_);
  if (!file.ok() || found.rfind(head_of(**file), 0) == 0) {
    return Error::Ok; // nothing was worth packing, or it was sealed before
  }
  // A method that was loaded later may have brought weights of its own.
  const std::string line = seal_of(**file) + program_ + "\n";
  PRGE_TRY(seal_.truncate(0));
  PRGE_TRY(seal_.write(line.data(), line.size()));
  return seal_.sync();
}

void PackedWeights::warn(const char* what, const char* why) const {
  if (warn_ != nullptr) {
    warn_((std::string(what) + ": " + why).c_str());
  }
}

} // namespace prge
