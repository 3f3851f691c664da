// prge::dual_update.out. Schema and meaning: prgec/runtime_ops/schemas.py and reference.py.
//
// Streams over tiles of 256 elements: the noise of both steps lives on the stack, never in memory. Tiles are
// independent, so the split over threads does not change a bit.
#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <cstring>

#include "checks.h"
#include "noise.h"

namespace prgec {
namespace {

using executorch::aten::SizesType;
using executorch::runtime::Error;
using executorch::runtime::KernelRuntimeContext;

struct Call {
  float* master;
  float* copies;
  const float* g;
  int64_t q;
  int64_t numel;
  // lr / q, rounded once.
  float rate;
  float eps;
  bool has_update;
  NoiseKey before;
  NoiseKey now;
};

void update_tile(const Call& call, int64_t tile, int size, float* master) {
  float acc[kTileElements] = {};
  float z[kTileElements];
  for (int64_t i = 0; i < call.q; ++i) {
    fill_normals(call.before, static_cast<uint32_t>(i), static_cast<uint32_t>(tile * kTileBlocks), (size + 3) / 4, z);
    const float g = call.g[i];
    for (int e = 0; e < size; ++e) {
      acc[e] = acc[e] + g * z[e];
    }
  }
  for (int e = 0; e < size; ++e) {
    master[e] = master[e] - call.rate * acc[e];
  }
}

void perturb_tile(const Call& call, int64_t tile, int size, const float* master, float* copies) {
  float z[kTileElements];
  for (int64_t i = 0; i < call.q; ++i) {
    float* plus = copies + 2 * i * call.numel;
    float* minus = plus + call.numel;
    if (call.eps == 0.0f) {
      std::memcpy(plus, master, size * sizeof(float));
      std::memcpy(minus, master, size * sizeof(float));
      continue;
    }
    fill_normals(call.now, static_cast<uint32_t>(i), static_cast<uint32_t>(tile * kTileBlocks), (size + 3) / 4, z);
    for (int e = 0; e < size; ++e) {
      const float move = call.eps * z[e];
      plus[e] = master[e] + move;
      minus[e] = master[e] - move;
    }
  }
}

void run_tile(const Call& call, int64_t tile) {
  const int size = tile_size(tile, call.numel);
  const int64_t first = tile * kTileElements;
  float* master = call.master + first;
  if (call.has_update) {
    update_tile(call, tile, size, master);
  }
  perturb_tile(call, tile, size, master, call.copies + first);
}

bool has_update(const Tensor& g) {
  const float* values = g.const_data_ptr<float>();
  for (int64_t i = 0; i < g.numel(); ++i) {
    if (values[i] != 0.0f) {
      return true;
    }
  }
  return false;
}

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
  const int64_t now = int_of(step);
  const int64_t before = static_cast<int64_t>(static_cast<uint64_t>(now) - 1u);
  const Call call = {
      // The schema declares the mutation; the boxing of kernels knows one mutable tensor only, `out`.
      master.mutable_data_ptr<float>(),
      out.mutable_data_ptr<float>(),
      g.const_data_ptr<float>(),
      g.numel(),
      master.numel(),
      float_of(lr) / static_cast<float>(g.numel()),
      float_of(eps),
      has_update(g),
      noise_key(int_of(seed), before, site),
      noise_key(int_of(seed), now, site)};
  const bool ran =
      executorch::extension::parallel_for(0, num_tiles(call.numel), kTileGrain, [&](int64_t begin, int64_t end) {
        for (int64_t tile = begin; tile < end; ++tile) {
          run_tile(call, tile);
        }
      });
  ET_KERNEL_CHECK_MSG(ctx, ran, Internal, out, "prge::dual_update: the thread pool failed");
  return out;
}

} // namespace
} // namespace prgec

EXECUTORCH_LIBRARY(prge, "dual_update.out", prgec::dual_update_out);
