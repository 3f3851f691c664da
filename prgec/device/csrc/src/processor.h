// Which kind of processor this is: packed weights of one are nothing to another.
#pragma once

#include <string>

namespace prge {

// Model and instruction sets, of all kinds of cores there are.
std::string processor();

} // namespace prge
