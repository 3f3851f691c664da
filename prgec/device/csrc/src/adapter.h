// The trained weights as a safetensors file, equal byte for byte to what prgec's Python driver writes.
#pragma once

#include <cstdint>
#include <string>

#include "prge/error.h"
#include "program.h"

namespace prge {

// Appears whole or not at all.
Error save_adapter(const std::string& path, const Program& program);

// Refuses a file that is damaged or belongs to another base model; the state is then unchanged.
Error load_adapter(const std::string& path, const Program& program);

// Everything a program needs to resume: its adapter and, if it computes gradients, the optimiser's state. After an
// error in loading, the state may be any; loading returns the steps that were done, 0 where the file does not name
// them.
Error save_snapshot(const std::string& path, const Program& program, uint64_t steps_done);
Result<uint64_t> load_snapshot_file(const std::string& path, const Program& program);

} // namespace prge
