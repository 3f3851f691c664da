#include "fail.h"

#include <cstdarg>
#include <cstdio>
#include <string>

#include "utf8.h"

namespace prge {

namespace {

thread_local std::string message;

} // namespace

const char* last_error() {
  return message.c_str();
}

Error fail(Error error, const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  message = line;
  // One printable line, whatever a file of a stranger has put into it.
  make_printable(message);
  return error;
}

} // namespace prge
