/* Preloaded into a driver, makes one of its writes fail: `tests/checks/write_faults.py`.
 *
 * PRGEC_FAIL_IN names the folder whose files count, PRGEC_FAIL_AT which of the calls fails (from 1; 0 for none), and
 * PRGEC_FAIL_COUNT a file that gets their number. Calls are write, writev, fsync, ftruncate and rename.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static const char* folder;
static long fail_at;
static long* count;

/* The variables are set after a fork: they are looked for until they are there. */
static int is_ready(void) {
  if (folder != NULL) {
    return 1;
  }
  const char *where = getenv("PRGEC_FAIL_IN"), *at = getenv("PRGEC_FAIL_AT"), *counted = getenv("PRGEC_FAIL_COUNT");
  if (where == NULL || at == NULL || counted == NULL) {
    return 0;
  }
  const int descriptor = open(counted, O_RDWR | O_CREAT, 0644);
  int (*truncate_it)(int, off_t) = (int (*)(int, off_t))dlsym(RTLD_NEXT, "ftruncate");
  if (descriptor < 0 || truncate_it(descriptor, sizeof(long)) != 0) {
    abort();
  }
  count = mmap(NULL, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  close(descriptor);
  fail_at = atol(at);
  folder = where;
  return 1;
}

static int fails(const char* path) {
  if (strncmp(path, folder, strlen(folder)) != 0) {
    return 0;
  }
  errno = EIO;
  return __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST) == fail_at;
}

static int fails_on(int descriptor) {
  char link[64], path[4096];
  if (!is_ready()) {
    return 0;
  }
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length < 0) {
    return 0;
  }
  path[length] = 0;
  return fails(path);
}

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, name))

ssize_t write(int descriptor, const void* data, size_t size) {
  typedef ssize_t (*Write)(int, const void*, size_t);
  return fails_on(descriptor) ? -1 : REAL("write", Write)(descriptor, data, size);
}

ssize_t writev(int descriptor, const struct iovec* parts, int number) {
  typedef ssize_t (*Writev)(int, const struct iovec*, int);
  return fails_on(descriptor) ? -1 : REAL("writev", Writev)(descriptor, parts, number);
}

int fsync(int descriptor) {
  typedef int (*Fsync)(int);
  return fails_on(descriptor) ? -1 : REAL("fsync", Fsync)(descriptor);
}

int ftruncate(int descriptor, off_t size) {
  typedef int (*Ftruncate)(int, off_t);
  return fails_on(descriptor) ? -1 : REAL("ftruncate", Ftruncate)(descriptor, size);
}

int rename(const char* from, const char* to) {
  typedef int (*Rename)(const char*, const char*);
  return is_ready() && fails(to) ? -1 : REAL("rename", Rename)(from, to);
}
