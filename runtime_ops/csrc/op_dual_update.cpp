// prge::dual_update.out and prge::perturbation.out. Schemas and meaning: prgec/runtime_ops/schemas.py and reference.py.
#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>

#include "checks.h"
#include "dual_update.h"

namespace prgec {
namespace {

using executorch::aten::SizesType;
using executorch::runtime::Error;
using executorch::runtime::KernelRuntimeContext;

bool resize_to_copies(const Tensor& master, int64_t q, Tensor& out) {
  const SizesType sizes[3] = {
      static_cast<SizesType>(2 * q), static_cast<SizesType>(master.size(0)), static_cast<SizesType>(master.size(1))};
  return executorch::runtime::resize_tensor(out, {sizes, 3}) == Error::Ok;
}

bool resize_to_moves(const Tensor& master, int64_t q, Tensor& out) {
  const SizesType sizes[4] = {
      static_cast<SizesType>(q), 1, static_cast<SizesType>(master.size(0)), static_cast<SizesType>(master.size(1))};
  return executorch::runtime::resize_tensor(out, {sizes, 4}) == Error::Ok;
}

// Reports to `ctx` what does not follow the schema that both operators have.
bool check_arguments(
    KernelRuntimeContext& ctx, const char* op, const Tensor& master, const Tensor& g, const Tensor& lr,
    const Tensor& eps, const Tensor& seed, const Tensor& step, int64_t site, const Tensor& out) {
  ET_KERNEL_CHECK_MSG(
      ctx, is_contiguous(master, ScalarType::Float, 2) && is_contiguous(g, ScalarType::Float, 1) && g.numel() > 0,
      InvalidArgument, false, "prge::%s: master must be float32[r, out] and g float32[q] with q >= 1", op);
  ET_KERNEL_CHECK_MSG(
      ctx, is_contiguous(lr, ScalarType::Float, 0) && is_contiguous(eps, ScalarType::Float, 0), InvalidArgument, false,
      "prge::%s: lr and eps must be float32 of rank 0", op);
  ET_KERNEL_CHECK_MSG(
      ctx, is_contiguous(seed, ScalarType::Long, 0) && is_contiguous(step, ScalarType::Long, 0), InvalidArgument, false,
      "prge::%s: seed and step must be int64 of rank 0", op);
  ET_KERNEL_CHECK_MSG(ctx, is_site(site), InvalidArgument, false, "prge::%s: site is outside [0, 2^32)", op);
  ET_KERNEL_CHECK_MSG(
      ctx, out.scalar_type() == ScalarType::Float && executorch::runtime::tensor_is_default_dim_order(out),
      InvalidArgument, false, "prge::%s: out must be float32", op);
  return true;
}

// One of the operators: how its result is called, shaped and filled.
struct Operator {
  const char* name;
  const char* shape;
  bool (*resize)(const Tensor& master, int64_t q, Tensor& out);
  float* DualUpdate::* made;
};

constexpr Operator kDualUpdate = {"dual_update", "2q, r, out", resize_to_copies, &DualUpdate::copies};
constexpr Operator kPerturbation = {"perturbation", "q, 1, r, out", resize_to_moves, &DualUpdate::moves};

Tensor& run(
    const Operator& op, KernelRuntimeContext& ctx, const Tensor& master, const Tensor& g, const Tensor& lr,
    const Tensor& eps, const Tensor& seed, const Tensor& step, int64_t site, Tensor& out) {
  if (!check_arguments(ctx, op.name, master, g, lr, eps, seed, step, site, out)) {
    return out;
  }
  ET_KERNEL_CHECK_MSG(
      ctx, op.resize(master, g.numel(), out), InvalidArgument, out, "prge::%s: out must be float32[%s]", op.name,
      op.shape);
  // The schemas declare the mutation; the boxing of kernels knows one mutable tensor only, `out`.
  DualUpdate call = {
      master.mutable_data_ptr<float>(),
      master.numel(),
      g.const_data_ptr<float>(),
      g.numel(),
      float_of(lr),
      float_of(eps),
      int_of(seed),
      int_of(step),
      site,
      nullptr};
  call.*op.made = out.mutable_data_ptr<float>();
  ET_KERNEL_CHECK_MSG(ctx, dual_update(call), Internal, out, "prge::%s: the thread pool failed", op.name);
  return out;
}

Tensor& dual_update_out(
    KernelRuntimeContext& ctx, const Tensor& master, const Tensor& g, const Tensor& lr, const Tensor& eps,
    const Tensor& seed, const Tensor& step, int64_t site, Tensor& out) {
  return run(kDualUpdate, ctx, master, g, lr, eps, seed, step, site, out);
}

Tensor& perturbation_out(
    KernelRuntimeContext& ctx, const Tensor& master, const Tensor& g, const Tensor& lr, const Tensor& eps,
    const Tensor& seed, const Tensor& step, int64_t site, Tensor& out) {
  return run(kPerturbation, ctx, master, g, lr, eps, seed, step, site, out);
}

} // namespace
} // namespace prgec

EXECUTORCH_LIBRARY(prge, "dual_update.out", prgec::dual_update_out);
EXECUTORCH_LIBRARY(prge, "perturbation.out", prgec::perturbation_out);
