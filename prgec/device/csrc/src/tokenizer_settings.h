// The settings of a program's tokenizer that a driver without one needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace prge {

// The token that ends a text; nothing where the tokenizer has none, or is not as prgec packs it.
std::optional<uint32_t> find_eos_id(const uint8_t* zip, size_t size);

} // namespace prge
