// Files that are mapped whole to be read, and files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "prge/error.h"

namespace prge {

class MappedFile {
 public:
  static Result<std::unique_ptr<MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const {
    return data_;
  }
  size_t size() const {
    return size_;
  }

 private:
  MappedFile(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  const uint8_t* data_;
  size_t size_;
};

// A file descriptor that writes everything or reports an error.
class File {
 public:
  ~File();
  // `flags` as for open(2).
  Error open(const std::string& path, int flags);
  // To be read and written, made if missing, for this user alone; an error while another process has it open so.
  Error open_locked(const std::string& path);
  // To be read; while it is open nobody gets an exclusive lock.
  Error open_shared(const std::string& path);
  // The whole of a small file.
  Error read(std::string& out) const;
  Error write(const void* data, size_t size);
  Error sync();
  // Gives it the time of now.
  void touch();
  // Cuts the file and goes on writing there.
  Error truncate(uint64_t size);
  bool is_open() const {
    return descriptor_ >= 0;
  }
  void close();

 private:
  int descriptor_ = -1;
  std::string path_;
};

// Writes to a neighbour of `path`; `commit` syncs it and gives it the name. Without commit nothing is left.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  Error open();
  Error write(const void* data, size_t size) {
    return file_.write(data, size);
  }
  Error commit();

 private:
  std::string path_;
  std::string scratch_;
  File file_;
};

// One run at a time in a folder: an advisory lock on the folder itself, which ends with the process that holds it. The
// Python driver takes the same one.
class FolderLock {
 public:
  ~FolderLock();
  Error take(const std::string& folder);
  void release();

 private:
  int descriptor_ = -1;
};

// With its parents.
Error make_folder(const std::string& path, unsigned mode = 0777);
bool is_file(const std::string& path);
Error rename_file(const std::string& from, const std::string& to);
void remove_file(const std::string& path);

} // namespace prge
