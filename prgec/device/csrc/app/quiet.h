// ExecuTorch's own lines are for those who ask, by PRGEC_DEBUG=1; a user gets one line.
#pragma once

#include <executorch/runtime/platform/platform.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "utf8.h"

inline bool is_debug() {
  const char* value = std::getenv("PRGEC_DEBUG");
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

inline void log_line(et_timestamp_t, et_pal_log_level_t, const char*, const char*, size_t, const char* text, size_t) {
  if (is_debug()) {
    std::string line = text;
    prge::make_printable(line);
    std::fprintf(stderr, "executorch: %s\n", line.c_str());
  }
}

inline void quiet_executorch() {
  executorch::runtime::register_pal(executorch::runtime::PalImpl::create(log_line, __FILE__));
}
