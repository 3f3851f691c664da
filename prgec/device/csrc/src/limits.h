// What becomes of a step whose numbers are too large or no numbers at all: stopped, skipped or clipped.
#pragma once

#include <cstdint>
#include <vector>

#include "prge/error.h"
#include "prge/trainer.h"

namespace prge {

Error check_limits(const Settings& settings);

// The policies as a journal's header has them.
uint32_t policy_flags(const Settings& settings);

// Brings g within the limits; `is_finite` says whether the losses are. An error where the run must stop.
Error limit(const Settings& settings, uint64_t step, bool is_finite, std::vector<float>& g);

} // namespace prge
