// Messages for users: an error in one line, with prgec's exit code, and warnings.
#pragma once

#include <cstdio>
#include <string>

#include "prge/error.h"
#include "utf8.h"

constexpr int kUsageCode = 2;

inline void warn(const char* line) {
  std::string text = line;
  prge::make_printable(text);
  std::fprintf(stderr, "warning: %s\n", text.c_str());
}

inline int report(prge::Error error) {
  std::fprintf(stderr, "error: %s\n", prge::last_error());
  switch (error) {
    case prge::Error::InvalidArgument:
      return kUsageCode;
    case prge::Error::InvalidExternalData:
      return 4;
    case prge::Error::InvalidProgram:
      return 5;
    case prge::Error::NotSupported:
      return 7;
    case prge::Error::InvalidState:
      return 8;
    default:
      return 1;
  }
}
