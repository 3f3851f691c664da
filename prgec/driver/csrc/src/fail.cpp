#include "fail.h"

#include <cstdarg>
#include <cstdio>

namespace prge {

namespace {
thread_local char message[1024] = "";
} // namespace

const char* last_error() {
  return message;
}

Error fail(Error error, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof(message), format, arguments);
  va_end(arguments);
  return error;
}

} // namespace prge
