#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "files.h"

using prge::Error;

static std::string text_of(const std::string& path) {
  const auto file = prge::MappedFile::open(path);
  return file.ok() ? std::string(reinterpret_cast<const char*>((*file)->data()), (*file)->size()) : "";
}

static void write(const std::string& path, const std::string& text) {
  prge::AtomicFile file(path);
  CHECK(file.open() == Error::Ok && file.write(text.data(), text.size()) == Error::Ok && file.commit() == Error::Ok);
}

TEST(an_atomic_file_is_whole_or_not_there) {
  const std::string path = check::scratch("atomic");
  {
    prge::AtomicFile file(path);
    CHECK(file.open() == Error::Ok && file.write("half", 4) == Error::Ok);
  }
  CHECK(!prge::is_file(path) && !prge::is_file(path + ".partial"));
  write(path, "whole");
  CHECK(text_of(path) == "whole");
  CHECK(!prge::is_file(path + ".partial"));
}

TEST(a_file_is_cut_and_goes_on_there) {
  const std::string path = check::scratch("cut");
  write(path, "0123456789");
  prge::File file;
  CHECK(file.open(path, O_WRONLY) == Error::Ok && file.truncate(4) == Error::Ok && file.write("ab", 2) == Error::Ok);
  CHECK(text_of(path) == "0123ab");
}

TEST(what_cannot_be_mapped_is_refused) {
  CHECK(prge::MappedFile::open(check::scratch("none")).error() == Error::AccessFailed);
  const std::string empty = check::scratch("empty");
  write(empty, "");
  CHECK(prge::MappedFile::open(empty).error() == Error::InvalidExternalData);
  CHECK(prge::MappedFile::open("/tmp").error() == Error::InvalidExternalData);
}

TEST(a_disk_that_is_full_is_told) {
  prge::File file;
  if (access("/dev/full", W_OK) == 0) {
    CHECK(file.open("/dev/full", O_WRONLY) == Error::Ok && file.write("a", 1) == Error::AccessFailed);
    CHECK(std::string(prge::last_error()) == "cannot write the file (/dev/full): No space left on device");
  }
}

TEST(folders_are_made_and_one_run_holds_each) {
  const std::string folder = check::scratch("a/b/c");
  CHECK(prge::make_folder(folder) == Error::Ok && prge::make_folder(folder) == Error::Ok);
  prge::FolderLock first, second;
  CHECK(first.take(folder) == Error::Ok);
  CHECK(second.take(folder) == Error::InvalidArgument);
  first.release();
  CHECK(second.take(folder) == Error::Ok);
  write(check::scratch("file"), "x");
  CHECK(prge::make_folder(check::scratch("file")) == Error::AccessFailed);
}
