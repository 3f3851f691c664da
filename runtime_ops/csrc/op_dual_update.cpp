// prge::dual_update.out. Schema and meaning: prgec/runtime_ops/schemas.py and reference.py.
#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>

#include "checks.h"
#include "dual_update.h"

namespace prgec {
namespace {

using executorch::aten::SizesType;
using executorch::runtime::Error;
using executorch::runtime::KernelRuntimeContext;

bool resize_out(const Tensor& master, int64_t q, Tensor& out) {
  const SizesType sizes[3] = {
      static_cast<SizesType>(2 * q), static_cast<SizesType>(master.size(0)), static_cast<SizesType>(master.size(1))};
  return executorch::runtime::resize_tensor(out, {sizes, 3}) == Error::Ok;
}

// Reports to `ctx` what does not follow the schema.
bool check_arguments(
    KernelRuntimeContext& ctx, const Tensor& master, const Tensor& g, const Tensor& lr, const Tensor& eps,
    const Tensor& seed, const Tensor& step, int64_t site, Tensor& out) {
  ET_KERNEL_CHECK_MSG(
      ctx, is_contiguous(master, ScalarType::Float, 2) && is_contiguous(g, ScalarType::Float, 1) && g.numel() > 0,
      InvalidArgument, false, "prge::dual_update: master must be float32[r, out] and g float32[q] with q >= 1");
  ET_KERNEL_CHECK_MSG(
      ctx, is_contiguous(lr, ScalarType::Float, 0) && is_contiguous(eps, ScalarType::Float, 0), InvalidArgument, false,
      "prge::dual_update: lr and eps must be float32 of rank 0");
  ET_KERNEL_CHECK_MSG(
      ctx, is_contiguous(seed, ScalarType::Long, 0) && is_contiguous(step, ScalarType::Long, 0), InvalidArgument, false,
      "prge::dual_update: seed and step must be int64 of rank 0");
  ET_KERNEL_CHECK_MSG(ctx, is_site(site), InvalidArgument, false, "prge::dual_update: site is outside [0, 2^32)");
  ET_KERNEL_CHECK_MSG(
      ctx,
      out.scalar_type() == ScalarType::Float && resize_out(master, g.numel(), out) &&
          executorch::runtime::tensor_is_default_dim_order(out),
      InvalidArgument, false, "prge::dual_update: out must be float32[2q, r, out]");
  return true;
}

Tensor& dual_update_out(
    KernelRuntimeContext& ctx, const Tensor& master, const Tensor& g, const Tensor& lr, const Tensor& eps,
    const Tensor& seed, const Tensor& step, int64_t site, Tensor& out) {
  if (!check_arguments(ctx, master, g, lr, eps, seed, step, site, out)) {
    return out;
  }
  const bool ran = dual_update(
      {// The schema declares the mutation; the boxing of kernels knows one mutable tensor only, `out`.
       master.mutable_data_ptr<float>(), master.numel(), g.const_data_ptr<float>(), g.numel(), float_of(lr),
       float_of(eps), int_of(seed), int_of(step), site, out.mutable_data_ptr<float>()});
  ET_KERNEL_CHECK_MSG(ctx, ran, Internal, out, "prge::dual_update: the thread pool failed");
  return out;
}

} // namespace
} // namespace prgec

EXECUTORCH_LIBRARY(prge, "dual_update.out", prgec::dual_update_out);
