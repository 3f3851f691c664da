// The delegate of a method, and whether this executable can run it.
#pragma once

#include <executorch/extension/module/module.h>

#include <string>

#include "prge/error.h"

namespace prge {

// Fails where a delegate of the method is not linked, or says that it cannot run here.
Error check_delegates(
    executorch::extension::Module& methods, const char* method, const std::string& backend, const std::string& path);

} // namespace prge
