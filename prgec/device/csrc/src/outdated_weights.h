// Packed weights that nobody will ask for again.
#pragma once

#include <string>

namespace prge {

// Removes from a folder of packed weights those whose program is gone, or was written anew since they were last used.
// Files that a process uses stay, and so do those of other programs; files that cannot be read or removed are skipped
// silently.
void remove_outdated(const std::string& folder);

} // namespace prge
