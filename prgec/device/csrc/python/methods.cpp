// The methods of a program for Python. ExecuTorch's own bindings link against torch, which running does not need, and
// load a method by its name alone, where XNNPACK takes the file of its packed weights from the options of that load.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv_cache.h"
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
// Types of a view without a tensor: text of `sizes[0]` bytes, or the number `sizes[0]`.
constexpr int64_t kText = -1, kNumber = -2;

// As `View` of prgec/runtime/engines/executorch/library.py.
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

int show(const EValue& value, View* out) {
  if (value.isTensor()) {
    return show(value.toTensor(), out);
  }
  if (value.isString()) {
    const std::string_view text = value.toString();
    *out = {const_cast<char*>(text.data()), kText, 0, {static_cast<int64_t>(text.size())}};
    return code(Error::Ok);
  }
  if (value.isInt()) {
    *out = {nullptr, kNumber, 0, {value.toInt()}};
    return code(Error::Ok);
  }
  return code(Error::InvalidType);
}

// Module keeps its methods to itself; the state lives in them.
class Methods : public executorch::extension::Module {
 public:
  // Methods share their arenas, or each would train a copy of its own.
  Methods(const char* path, std::vector<std::string> data, void (*warn)(const char* line))
      : Module(path, std::move(data), LoadMode::Mmap, nullptr, nullptr, nullptr, /*share_memory_arenas=*/true),
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
  prge::KeyValueCache cache;
  prge::RowCaches caches;
  // Results of the last call: values of tensors are in the arenas, all others are here.
  std::vector<EValue> outputs;
};

} // namespace

#define PRGEC_API extern "C" __attribute__((visibility("default")))

// Says whether a kernel of that name is registered.
PRGEC_API bool prgec_has_kernel(const char* name) {
  const auto kernels = executorch::runtime::get_registered_kernels();
  return std::any_of(kernels.begin(), kernels.end(), [&](const auto& each) { return !std::strcmp(each.name_, name); });
}

// Maps a program, and the file of weights beside it unless `data` is null; null, and why, where it cannot be read.
PRGEC_API void* prgec_methods_open(const char* path, const char* data, void (*warn)(const char* line), int* error) {
  // The pool of threads reports on the processor as it starts; left alone it would do so in the first step.
  executorch::extension::parallel_for(0, 2, 1, [](int64_t, int64_t) {});
  auto* methods = new Methods(path, data ? std::vector<std::string>{data} : std::vector<std::string>(), warn);
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

// Says whether the program has a method of that name.
PRGEC_API bool prgec_methods_has(void* methods, const char* name) {
  const auto names = static_cast<Methods*>(methods)->method_names();
  return names.ok() && names->count(name) != 0;
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

// Shows an input of a loaded method; it has a type and sizes, and no data yet.
PRGEC_API int prgec_methods_input(void* methods, const char* name, int64_t index, View* out) {
  const auto meta = static_cast<Methods*>(methods)->method_meta(name);
  if (!meta.ok()) {
    return code(meta.error());
  }
  const auto input = meta->input_tensor_meta(static_cast<size_t>(index));
  if (!input.ok() || input->sizes().size() > kMaxRank) {
    return code(input.ok() ? Error::NotSupported : input.error());
  }
  *out = {nullptr, static_cast<int64_t>(input->scalar_type()), static_cast<int64_t>(input->sizes().size()), {}};
  std::copy(input->sizes().begin(), input->sizes().end(), out->sizes);
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
    if (const int error = show(value, outputs++); error != code(Error::Ok)) {
      return error;
    }
  }
  return code(Error::Ok);
}

// A view of a buffer of a loaded method.
PRGEC_API int prgec_methods_attribute(void* methods, const char* method, const char* name, View* out) {
  return static_cast<Methods*>(methods)->attribute(method, name, out);
}

// Finds out what `extend`, which is loaded, keeps of what it has read.
PRGEC_API int prgec_methods_open_cache(void* handle) {
  auto* methods = static_cast<Methods*>(handle);
  return code(methods->cache.open(*methods));
}

// Reads tokens at the positions from `start` on, after those read before; `logits` is overwritten by the
// next call.
PRGEC_API int prgec_methods_extend(void* handle, const int64_t* tokens, int64_t count, int64_t start, View* logits) {
  auto* methods = static_cast<Methods*>(handle);
  const auto found = methods->cache.extend(*methods, tokens, static_cast<size_t>(count), static_cast<size_t>(start));
  return found.ok() ? show(*found, logits) : code(found.error());
}

// Forgets what `extend` has read.
PRGEC_API void prgec_methods_forget(void* methods) {
  static_cast<Methods*>(methods)->cache.clear();
}

// Finds out what `decode`, which is loaded, keeps of what it has read.
PRGEC_API int prgec_methods_open_caches(void* handle) {
  auto* methods = static_cast<Methods*>(handle);
  return code(methods->caches.open(*methods));
}

// Lets text `row` of `decode` begin with the first `count` tokens that `extend` has read.
PRGEC_API int prgec_methods_fork(void* handle, int64_t row, int64_t count) {
  auto* methods = static_cast<Methods*>(handle);
  return code(methods->caches.fork(methods->cache, static_cast<size_t>(row), static_cast<size_t>(count)));
}

// Reads tokens[r] of each text r at the position starts[r]; `logits` is overwritten by the next call.
PRGEC_API int prgec_methods_decode(void* handle, const int64_t* tokens, const int64_t* starts, View* logits) {
  auto* methods = static_cast<Methods*>(handle);
  const auto found = methods->caches.decode(*methods, tokens, starts);
  return found.ok() ? show(*found, logits) : code(found.error());
}
