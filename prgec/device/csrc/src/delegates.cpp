#include "delegates.h"

#include <executorch/runtime/backend/interface.h>

#include "fail.h"

namespace prge {

namespace {

// OpenVINO and CUDA are driven by Python; no build of this driver links them.
const char* what_to_do(const std::string& backend) {
  return backend == "openvino" || backend == "cuda"
      ? "run it with prgec, or compile it with --backend xnnpack"
      : "link an ExecuTorch that has it, or compile the program with --backend xnnpack";
}

} // namespace

Error check_delegates(
    executorch::extension::Module& methods, const char* method, const std::string& backend, const std::string& path) {
  const auto meta = methods.method_meta(method);
  for (size_t i = 0; meta.ok() && i < meta->num_backends(); ++i) {
    const auto name = meta->get_backend_name(i);
    if (!name.ok()) {
      return fail(Error::InvalidProgram, "the program is damaged (%s): %s", path.c_str(), to_string(name.error()));
    }
    const auto* delegate = executorch::runtime::get_backend_class(*name);
    if (delegate == nullptr || !delegate->is_available()) {
      return fail(
          Error::NotSupported, "programs of --backend %s need %s, which this driver does not have (%s). Hint: %s",
          backend.c_str(), *name, path.c_str(), what_to_do(backend));
    }
  }
  return Error::Ok;
}

} // namespace prge
