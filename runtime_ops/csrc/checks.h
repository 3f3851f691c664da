// Argument checks and scalar reads shared by the prge kernels.
#pragma once

#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

#include <cstdint>

#include "noise.h"

namespace prgec {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;

inline bool is_contiguous(const Tensor& tensor, ScalarType dtype, int64_t rank) {
  return tensor.scalar_type() == dtype && tensor.dim() == rank &&
      executorch::runtime::tensor_is_default_dim_order(tensor);
}

inline bool is_site(int64_t site) {
  return site >= 0 && site <= 0xffffffffll;
}

inline float float_of(const Tensor& scalar) {
  return scalar.const_data_ptr<float>()[0];
}

inline int64_t int_of(const Tensor& scalar) {
  return scalar.const_data_ptr<int64_t>()[0];
}

// Negative seeds and steps wrap, as the masks of the eager reference do.
inline NoiseKey noise_key(int64_t seed, int64_t step, int64_t site) {
  return {static_cast<uint64_t>(seed), static_cast<uint32_t>(step), static_cast<uint32_t>(site)};
}

inline int64_t num_tiles(int64_t numel) {
  return (numel + kTileElements - 1) / kTileElements;
}

// Elements of tile `tile` of a tensor of `numel` elements.
inline int tile_size(int64_t tile, int64_t numel) {
  const int64_t rest = numel - tile * kTileElements;
  return static_cast<int>(rest < kTileElements ? rest : kTileElements);
}

// Tiles a thread takes at a time: tens of microseconds of work, so that small sites stay on one thread.
constexpr int64_t kTileGrain = 8;

} // namespace prgec
