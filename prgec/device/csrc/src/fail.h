// Sets the text of last_error().
#pragma once

#include "prge/error.h"

// Returns from a function that gives an Error or a Result when an expression is an error.
#define PRGE_TRY(expression)                       \
  do {                                             \
    const ::prge::Error prge_error = (expression); \
    if (prge_error != ::prge::Error::Ok) {         \
      return prge_error;                           \
    }                                              \
  } while (false)

namespace prge {

// printf's format; returns `error`, so that `return fail(...)` reads well.
__attribute__((format(printf, 2, 3))) Error fail(Error error, const char* format, ...);

} // namespace prge
