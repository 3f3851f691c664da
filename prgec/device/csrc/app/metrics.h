// metrics.jsonl, the readable form of a journal: the lines prgec's Python driver writes, without its clock.
#pragma once

#include <string>

#include "prge/error.h"

namespace prge {

// Appears whole or not at all.
Error write_metrics(const std::string& journal, const std::string& path);

} // namespace prge
