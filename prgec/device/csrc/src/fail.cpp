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
  for (char* c = message; *c != '\0'; ++c) {
    // One printable line, whatever a file of a stranger has put into it.
    if (static_cast<unsigned char>(*c) < 0x20 || *c == 0x7f) {
      *c = '?';
    }
  }
  return error;
}

} // namespace prge
