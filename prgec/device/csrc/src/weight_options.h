// How a method of an XNNPACK program is loaded: methods share what is packed of a weight, in memory or in a file.
#pragma once

#include <executorch/runtime/backend/backend_options_map.h>

#include <string>

#include "fail.h"

namespace prge {

// ExecuTorch's map refers to options beside it, so the two stay together.
class WeightOptions {
 public:
  // `path` names the file of packed weights, and outlives this; empty where memory must do.
  Error share(const std::string& path) {
    PRGE_TRY(options_.set_option("weight_cache_enabled", true));
    if (!path.empty()) {
      PRGE_TRY(options_.set_option("packed_cache_path", path.c_str()));
    }
    return map_.set_options("XnnpackBackend", options_.view());
  }

  const executorch::runtime::LoadBackendOptionsMap* map() const {
    return &map_;
  }

 private:
  executorch::runtime::BackendOptions<2> options_;
  executorch::runtime::LoadBackendOptionsMap map_;
};

} // namespace prge
