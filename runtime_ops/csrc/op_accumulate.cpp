// prge::accumulate.out. Schema and meaning: prgec/runtime_ops/schemas.py and accumulation.py.
#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <limits>

#include "checks.h"

namespace prgec {
namespace {

using executorch::runtime::KernelRuntimeContext;

constexpr int64_t kGrain = 1 << 14;

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
  const int64_t before = call.const_data_ptr<int64_t>()[0];
  const bool is_last = call.const_data_ptr<int64_t>()[1] != 0;
  const float count = static_cast<float>(before + 1);
  float* sums = total.mutable_data_ptr<float>();
  const float* values = value.const_data_ptr<float>();
  float* means = out.mutable_data_ptr<float>();
  const bool ran = executorch::extension::parallel_for(0, total.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      sums[e] = before == 0 ? values[e] : sums[e] + values[e];
      means[e] = is_last ? sums[e] / count : std::numeric_limits<float>::infinity();
    }
  });
  ET_KERNEL_CHECK_MSG(ctx, ran, Internal, out, "prge::accumulate: the thread pool failed");
  return out;
}

} // namespace
} // namespace prgec

EXECUTORCH_LIBRARY(prge, "accumulate.out", prgec::accumulate_out);
