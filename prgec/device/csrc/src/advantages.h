// Weights of the labels of an answer in the loss: prgec/runtime/training/advantages.py, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "prge/rollouts.h"

namespace prge {

// Weights of the labels of each answer; answers to a prompt follow each other. `lengths` are their tokens.
std::vector<double> label_weights(
    Advantage advantage, const std::vector<double>& rewards, const std::vector<size_t>& lengths, size_t group,
    uint32_t max_tokens);

} // namespace prge
