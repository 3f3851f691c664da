// prge::accumulate.out. Schema and meaning: prgec/runtime_ops/schemas.py and accumulation.py.
#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>

#include "checks.h"
#include "optimizers.h"

namespace prgec {
namespace {

using executorch::runtime::KernelRuntimeContext;

bool are_floats_of_one_shape(const Tensor& total, const Tensor& value) {
  bool is_equal = total.dim() == value.dim();
  for (int64_t d = 0; is_equal && d < total.dim(); ++d) {
    is_equal = total.size(d) == value.size(d);
  }
  return is_equal && is_contiguous(total, ScalarType::Float, total.dim()) &&
      is_contiguous(value, ScalarType::Float, total.dim());
}

Tensor& accumulate_out(
    KernelRuntimeContext& ctx, const Tensor& total, const Tensor& value, const Tensor& call, Tensor& out) {
  ET_KERNEL_CHECK_MSG(
      ctx,
      are_floats_of_one_shape(total, value) && are_floats_of_one_shape(total, out) &&
          is_contiguous(call, ScalarType::Long, 1) && call.numel() == 2,
      InvalidArgument, out, "prge::accumulate: total, value and out must be float32 of one shape, call int64[2]");
  const int64_t* which = call.const_data_ptr<int64_t>();
  const bool ran = accumulate(
      total.mutable_data_ptr<float>(), value.const_data_ptr<float>(), total.numel(), which[0], which[1] != 0,
      out.mutable_data_ptr<float>());
  ET_KERNEL_CHECK_MSG(ctx, ran, Internal, out, "prge::accumulate: the thread pool failed");
  return out;
}

} // namespace
} // namespace prgec

EXECUTORCH_LIBRARY(prge, "accumulate.out", prgec::accumulate_out);
