// Errors as ExecuTorch reports them, with one line of text that says what failed, where, and what to do.
#pragma once

#include <executorch/runtime/core/error.h>
#include <executorch/runtime/core/result.h>

namespace prge {

using executorch::runtime::Error;
using executorch::runtime::Result;

// The failure of the last call of this thread that returned an error. Never null.
//
//   InvalidArgument      a setting, or a call in the wrong order
//   InvalidExternalData  rows, adapter or journal
//   InvalidProgram       the .pte, or running it
//   NotSupported         a backend that this build does not have, or that cannot run here
//   InvalidState         a loss or g is not finite: this step was dropped, the state is that of the step before; or
//                        training diverged
//   AccessFailed         the file system
const char* last_error();

} // namespace prge
