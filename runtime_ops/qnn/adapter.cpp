// Stands in for libQnnHtp.so, so that an ExecuTorch built against QAIRT 2.37 can drive a newer library.
//
// After 2.37 the custom configuration of an HTP device grew a pointer in its union, and the union moved from byte 4 to
// byte 8. ExecuTorch fills in the old form, where a newer library reads "socModel 0". This library has the soname of
// the real one, hands out a copy of the real function table, and rewrites that one structure on its way in. Everything
// else goes straight to the real library. The new form is tried first and the old one where it is refused: the
// libraries between the versions that were seen know best which one is theirs.

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

using Error = std::uint64_t;

constexpr Error kGeneralError = 1000;
constexpr std::uint32_t kCustom = 0;
constexpr std::size_t kNumFunctions = 64; // of the interface ExecuTorch was built against; later ones only append
constexpr std::size_t kGetBuildId = 4;
constexpr std::size_t kDeviceCreate = 40;
constexpr std::size_t kMaxConfigs = 16; // ExecuTorch passes one, the SoC

struct Provider {
  std::uint32_t backend_id;
  const char* name;
  std::uint32_t version[6];
  void* functions[kNumFunctions];
};

struct Config {
  std::uint32_t option;
  const void* value;
};

struct OldCustom {
  std::uint32_t option;
  std::uint32_t words[2];
};

struct NewCustom {
  std::uint32_t option;
  std::uint32_t padding;
  std::uint32_t words[2];
  std::uint64_t spare[4];
};

using GetProviders = Error (*)(const Provider*** providers, std::uint32_t* count);
using GetBuildId = Error (*)(const char** id);
using DeviceCreate = Error (*)(void* logger, const Config** configs, void** device);

static_assert(offsetof(Provider, functions) == 40);
static_assert(offsetof(OldCustom, words) == 4 && offsetof(NewCustom, words) == 8);

Provider provider;
const Provider* providers[1] = {&provider};
DeviceCreate real_device_create = nullptr;

Error device_create(void* logger, const Config** configs, void** device) {
  NewCustom customs[kMaxConfigs] = {};
  Config copies[kMaxConfigs] = {};
  const Config* list[kMaxConfigs + 1] = {};
  std::size_t count = 0;
  for (; configs != nullptr && configs[count] != nullptr; ++count) {
    if (count == kMaxConfigs) {
      return kGeneralError;
    }
    copies[count] = *configs[count];
    list[count] = &copies[count];
    if (copies[count].option == kCustom && copies[count].value != nullptr) {
      const auto* old = static_cast<const OldCustom*>(copies[count].value);
      customs[count].option = old->option;
      std::memcpy(customs[count].words, old->words, sizeof old->words);
      copies[count].value = &customs[count];
    }
  }
  const Error error = real_device_create(logger, list, device);
  return error == 0 || count == 0 ? error : real_device_create(logger, configs, device);
}

} // namespace

extern "C" {

// Names the real library, once; returns null, or why it cannot be used. Comes before ExecuTorch asks for providers.
__attribute__((visibility("default"))) const char* prgec_qnn_open(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return dlerror();
  }
  const auto get = reinterpret_cast<GetProviders>(dlsym(library, "QnnInterface_getProviders"));
  const Provider** list = nullptr;
  std::uint32_t count = 0;
  if (get == nullptr || get(&list, &count) != 0 || count != 1) {
    return "it has no QNN interface";
  }
  provider = *list[0];
  real_device_create = reinterpret_cast<DeviceCreate>(provider.functions[kDeviceCreate]);
  provider.functions[kDeviceCreate] = reinterpret_cast<void*>(device_create);
  return nullptr;
}

// Build of the real library, such as "v2.51.0.260929181845"; null before it is open.
__attribute__((visibility("default"))) const char* prgec_qnn_build() {
  const char* id = nullptr;
  if (real_device_create != nullptr) {
    reinterpret_cast<GetBuildId>(provider.functions[kGetBuildId])(&id);
  }
  return id;
}

__attribute__((visibility("default"))) Error QnnInterface_getProviders(const Provider*** out, std::uint32_t* count) {
  if (real_device_create == nullptr || out == nullptr || count == nullptr) {
    return kGeneralError;
  }
  *out = providers;
  *count = 1;
  return 0;
}

} // extern "C"
