// The files a program consists of: the .pte, and weights beside it where the backend keeps them there.
#pragma once

#include <string>

#include "checksum.h"
#include "files.h"
#include "prge/error.h"

namespace prge {

// That the file is an ExecuTorch program and whole.
Error check_envelope(const std::string& path);

// Hash of a file too large to be read whole: over its size, its first and last MiB.
Digest fingerprint(const MappedFile& file);

// Path of the weights of the program at `path`: the file of the same name, if it is the one with this fingerprint.
Result<std::string> find_data(const std::string& path, const std::string& sha256);

} // namespace prge
