// Argument checks and scalar reads shared by the prge kernels.
#pragma once

#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

#include <cstdint>

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

} // namespace prgec
