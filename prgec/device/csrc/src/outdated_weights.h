// Packed weights that nobody will ask for again.
#pragma once

#include <string>

namespace prge {

// Removes from a folder of packed weights those whose program is gone, or was written anew since they were last used.
// What a process uses stays, and so does what is no driver's; what cannot be read or removed is left without a word.
void remove_outdated(const std::string& folder);

} // namespace prge
