// Lets methods of one program share what XNNPACK packs of their weights. Python's bindings have no way to give a
// backend its options; this one sets them for the process, through the runtime this library is linked with.
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>

// Returns 0, or ExecuTorch's error code: there is no XNNPACK in this runtime, or it knows no such option.
extern "C" __attribute__((visibility("default"))) int prgec_share_packed_weights() {
  executorch::runtime::BackendOptions<1> options;
  const executorch::runtime::Error error = options.set_option("weight_cache_enabled", true);
  if (error != executorch::runtime::Error::Ok) {
    return static_cast<int>(error);
  }
  return static_cast<int>(executorch::runtime::set_option("XnnpackBackend", options.view()));
}
