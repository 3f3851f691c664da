// Methods of a program for Python, loaded with options. ExecuTorch's own bindings load a method by its name alone, and
// XNNPACK takes the file of its packed weights from the options of that load and from nowhere else.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "packed_weights.h"
#include "prge/error.h"
#include "weight_options.h"

namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;

constexpr int64_t kMaxRank = 8;

// As `_View` of prgec/engines/executorch/methods.py.
struct View {
  void* data;
  int64_t type;
  int64_t rank;
  int64_t sizes[kMaxRank];
};

int code(Error error) {
  return static_cast<int>(error);
}

int show(const Tensor& tensor, View* out) {
  if (tensor.dim() > kMaxRank) {
    return code(Error::NotSupported);
  }
  out->data = tensor.mutable_data_ptr();
  out->type = static_cast<int64_t>(tensor.scalar_type());
  out->rank = tensor.dim();
  std::copy_n(tensor.sizes().data(), tensor.dim(), out->sizes);
  return code(Error::Ok);
}

// Module keeps its methods to itself; the state lives in them.
class Methods : public executorch::extension::Module {
 public:
  // Methods share their arenas, or each would train a copy of its own.
  Methods(const char* path, void (*warn)(const char* line))
      : Module(
            path, std::vector<std::string>(), LoadMode::Mmap, nullptr, nullptr, nullptr, /*share_memory_arenas=*/true),
        packed(warn) {}

  Error load_sharing(const char* name) {
    prge::WeightOptions options;
    const Error error = options.share(packed.path());
    return error == Error::Ok ? load_method(name, nullptr, nullptr, options.map()) : error;
  }

  int attribute(const char* method, const char* name, View* out) {
    const auto found = methods_.find(method);
    if (found == methods_.end()) {
      return code(Error::InvalidArgument);
    }
    const auto tensor = found->second.method->get_attribute(name);
    return tensor.ok() ? show(*tensor, out) : code(tensor.error());
  }

  prge::PackedWeights packed;
  // Of the last call: what a caller reads of a tensor lies in the arenas, what is no tensor does here.
  std::vector<EValue> outputs;
};

} // namespace

#define PRGEC_API extern "C" __attribute__((visibility("default")))

// Maps a program; null, and why, where it cannot be read.
PRGEC_API void* prgec_methods_open(const char* path, void (*warn)(const char* line), int* error) {
  auto* methods = new Methods(path, warn);
  *error = code(methods->load(executorch::runtime::Program::Verification::InternalConsistency));
  if (*error != code(Error::Ok)) {
    delete methods;
    return nullptr;
  }
  return methods;
}

PRGEC_API void prgec_methods_close(void* methods) {
  delete static_cast<Methods*>(methods);
}

// Keeps packed weights in a file of `folder`, before any method is loaded; `base` stands for the weights.
PRGEC_API void prgec_methods_keep(void* methods, const char* folder, const char* program, const char* base) {
  static_cast<Methods*>(methods)->packed.open(folder, program, base);
}

// Calls the file of packed weights whole.
PRGEC_API void prgec_methods_seal(void* methods) {
  static_cast<Methods*>(methods)->packed.seal();
}

// Loads a method and says how many inputs it takes and outputs it has; returns ExecuTorch's error code, as all below.
PRGEC_API int prgec_methods_load(void* handle, const char* name, int64_t* num_inputs, int64_t* num_outputs) {
  auto* methods = static_cast<Methods*>(handle);
  if (const Error error = methods->load_sharing(name); error != Error::Ok) {
    return code(error);
  }
  const auto meta = methods->method_meta(name);
  if (!meta.ok()) {
    return code(meta.error());
  }
  *num_inputs = static_cast<int64_t>(meta->num_inputs());
  *num_outputs = static_cast<int64_t>(meta->num_outputs());
  return code(Error::Ok);
}

// Runs a method. Inputs are only read; `outputs` has a place for each, for views that the next call overwrites.
PRGEC_API int prgec_methods_run(void* handle, const char* name, const View* inputs, int64_t num_inputs, View* outputs) {
  auto* methods = static_cast<Methods*>(handle);
  std::vector<executorch::extension::TensorPtr> tensors;
  std::vector<EValue> values;
  for (const View* each = inputs; each < inputs + num_inputs; ++each) {
    std::vector<SizesType> sizes(each->sizes, each->sizes + each->rank);
    tensors.push_back(
        executorch::extension::from_blob(each->data, std::move(sizes), static_cast<ScalarType>(each->type)));
    values.emplace_back(*tensors.back());
  }
  auto found = methods->execute(name, values);
  if (!found.ok()) {
    return code(found.error());
  }
  methods->outputs = std::move(*found);
  for (const EValue& value : methods->outputs) {
    if (!value.isTensor()) {
      return code(Error::InvalidType);
    }
    if (const int error = show(value.toTensor(), outputs++); error != code(Error::Ok)) {
      return error;
    }
  }
  return code(Error::Ok);
}

// A view of a buffer of a loaded method.
PRGEC_API int prgec_methods_attribute(void* methods, const char* method, const char* name, View* out) {
  return static_cast<Methods*>(methods)->attribute(method, name, out);
}
