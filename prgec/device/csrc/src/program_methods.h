// The methods of a .pte, as ExecuTorch's Module loads and runs them.
#pragma once

#include <executorch/extension/module/module.h>

#include <string>
#include <utility>
#include <vector>

#include "program.h"

namespace prge {

// Module keeps its methods to itself; the state lives in one of them.
class Program::Methods : public executorch::extension::Module {
 public:
  // Methods share their arenas, or each would train a copy of its own.
  Methods(const std::string& path, std::vector<std::string> data)
      : Module(path, std::move(data), LoadMode::Mmap, nullptr, nullptr, nullptr, /*share_memory_arenas=*/true) {}

  // Information on a loaded method.
  Result<executorch::aten::Tensor> attribute(const std::string& name) {
    return methods_.at("forward").method->get_attribute(name);
  }
};

} // namespace prge
