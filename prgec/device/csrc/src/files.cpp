#include "files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "fail.h"

namespace prge {

namespace {

Error failed(const char* what, const std::string& path) {
  return fail(Error::AccessFailed, "cannot %s (%s): %s", what, path.c_str(), std::strerror(errno));
}

// A rename survives a power cut once the folder is on the disk.
void sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor >= 0) {
    ::fsync(descriptor);
    ::close(descriptor);
  }
}

} // namespace

Result<std::unique_ptr<MappedFile>> MappedFile::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return failed("open the file", path);
  }
  struct stat info;
  void* data = MAP_FAILED;
  const bool is_usable = ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
  if (is_usable) {
    data = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
  }
  ::close(descriptor);
  if (!is_usable) {
    return fail(Error::InvalidExternalData, "not a file with anything in it (%s)", path.c_str());
  }
  if (data == MAP_FAILED) {
    return failed("map the file", path);
  }
  return std::unique_ptr<MappedFile>(
      new MappedFile(static_cast<const uint8_t*>(data), static_cast<size_t>(info.st_size)));
}

MappedFile::~MappedFile() {
  ::munmap(const_cast<uint8_t*>(data_), size_);
}

File::~File() {
  close();
}

Error File::open(const std::string& path, int flags) {
  close();
  path_ = path;
  descriptor_ = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  return descriptor_ < 0 ? failed("write the file", path) : Error::Ok;
}

Error File::open_locked(const std::string& path) {
  close();
  path_ = path;
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor_ < 0) {
    return failed("write the file", path);
  }
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
    return Error::Ok;
  }
  return errno == EWOULDBLOCK ? fail(Error::AccessFailed, "another process uses the file (%s)", path.c_str())
                              : failed("lock the file", path);
}

Error File::open_shared(const std::string& path) {
  PRGE_TRY(open(path, O_RDONLY));
  return ::flock(descriptor_, LOCK_SH | LOCK_NB) == 0 ? Error::Ok : failed("lock the file", path);
}

Error File::read(std::string& out) const {
  char buffer[256];
  out.clear();
  for (ssize_t got = 1; got > 0;) {
    got = ::pread(descriptor_, buffer, sizeof(buffer), static_cast<off_t>(out.size()));
    if (got < 0) {
      return failed("read the file", path_);
    }
    out.append(buffer, static_cast<size_t>(got));
  }
  return Error::Ok;
}

Error File::write(const void* data, size_t size) {
  const uint8_t* bytes = static_cast<const uint8_t*>(data);
  while (size > 0) {
    const ssize_t written = ::write(descriptor_, bytes, size);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return failed("write the file", path_);
    }
    bytes += written;
    size -= static_cast<size_t>(written);
  }
  return Error::Ok;
}

Error File::sync() {
  return ::fsync(descriptor_) == 0 ? Error::Ok : failed("sync the file", path_);
}

void File::touch() {
  ::futimens(descriptor_, nullptr);
}

Error File::truncate(uint64_t size) {
  const off_t end = static_cast<off_t>(size);
  const bool is_done = ::ftruncate(descriptor_, end) == 0 && ::lseek(descriptor_, end, SEEK_SET) == end;
  return is_done ? Error::Ok : failed("cut the file", path_);
}

void File::close() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    descriptor_ = -1;
  }
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), scratch_(path_ + ".partial") {}

AtomicFile::~AtomicFile() {
  if (file_.is_open()) {
    file_.close();
    remove_file(scratch_);
  }
}

Error AtomicFile::open() {
  return file_.open(scratch_, O_WRONLY | O_CREAT | O_TRUNC);
}

Error AtomicFile::commit() {
  PRGE_TRY(file_.sync());
  PRGE_TRY(rename_file(scratch_, path_));
  file_.close();
  return Error::Ok;
}

FolderLock::~FolderLock() {
  release();
}

Error FolderLock::take(const std::string& folder) {
  release();
  descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) {
    return failed("open the folder", folder);
  }
  // File systems without locks run unlocked: better than not at all.
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EACCES)) {
    release();
    return fail(
        Error::InvalidArgument,
        "another run is writing to this folder (%s). Hint: wait until it ends, or name another folder", folder.c_str());
  }
  return Error::Ok;
}

void FolderLock::release() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    descriptor_ = -1;
  }
}

Error make_folder(const std::string& path, unsigned mode) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    ::mkdir(path.substr(0, slash).c_str(), 0777);
  }
  struct stat info;
  if (::mkdir(path.c_str(), mode) == 0 || (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode))) {
    return Error::Ok;
  }
  return failed("make the folder", path);
}

bool is_file(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

Error rename_file(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    return failed("rename to", to);
  }
  sync_folder_of(to);
  return Error::Ok;
}

void remove_file(const std::string& path) {
  ::unlink(path.c_str());
}

} // namespace prge
