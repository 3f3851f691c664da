// What a user is told of an error: one line, and an exit code, which is that of prgec.
#pragma once

#include <cstdio>

#include "prge/error.h"

constexpr int kUsageCode = 2;

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
