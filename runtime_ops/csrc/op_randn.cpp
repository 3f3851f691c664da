// prge::randn.out. Schema and meaning: prgec/runtime_ops/schemas.py and reference.py.
#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <cstring>

#include "checks.h"
#include "noise.h"
#include "tiles.h"

namespace prgec {
namespace {

using executorch::aten::ArrayRef;
using executorch::aten::SizesType;
using executorch::runtime::Error;
using executorch::runtime::KernelRuntimeContext;

constexpr size_t kMaxRank = 16;

// Makes `out` f32[q, *shape]; false where it cannot be.
bool resize_out(int64_t q, ArrayRef<int64_t> shape, Tensor& out) {
  if (q < 1 || shape.size() + 1 > kMaxRank) {
    return false;
  }
  SizesType sizes[kMaxRank];
  sizes[0] = static_cast<SizesType>(q);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 0) {
      return false;
    }
    sizes[d + 1] = static_cast<SizesType>(shape[d]);
  }
  return executorch::runtime::resize_tensor(out, {sizes, shape.size() + 1}) == Error::Ok;
}

void write_tile(const NoiseKey& key, int64_t query, int64_t tile, int64_t numel, float* out) {
  const int size = tile_size(tile, numel);
  float* target = out + query * numel + tile * kTileElements;
  const uint32_t first_block = static_cast<uint32_t>(tile * kTileBlocks);
  if (size == kTileElements) {
    fill_normals(key, static_cast<uint32_t>(query), first_block, kTileBlocks, target);
    return;
  }
  float z[kTileElements];
  fill_normals(key, static_cast<uint32_t>(query), first_block, (size + 3) / 4, z);
  std::memcpy(target, z, size * sizeof(float));
}

Tensor& randn_out(
    KernelRuntimeContext& ctx, const Tensor& seed, const Tensor& step, int64_t site, int64_t q, ArrayRef<int64_t> shape,
    Tensor& out) {
  ET_KERNEL_CHECK_MSG(
      ctx, is_contiguous(seed, ScalarType::Long, 0) && is_contiguous(step, ScalarType::Long, 0), InvalidArgument, out,
      "prge::randn: seed and step must be int64 of rank 0");
  ET_KERNEL_CHECK_MSG(ctx, is_site(site), InvalidArgument, out, "prge::randn: site is outside [0, 2^32)");
  ET_KERNEL_CHECK_MSG(
      ctx,
      out.scalar_type() == ScalarType::Float && resize_out(q, shape, out) &&
          executorch::runtime::tensor_is_default_dim_order(out),
      InvalidArgument, out, "prge::randn: out must be float32[q, *shape] with q >= 1");

  const NoiseKey key = noise_key(int_of(seed), int_of(step), site);
  const int64_t numel = out.numel() / q;
  const int64_t tiles = num_tiles(numel);
  float* data = out.mutable_data_ptr<float>();
  const bool ran = executorch::extension::parallel_for(0, q * tiles, kTileGrain, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      write_tile(key, index / tiles, index % tiles, numel, data);
    }
  });
  ET_KERNEL_CHECK_MSG(ctx, ran, Internal, out, "prge::randn: the thread pool failed");
  return out;
}

} // namespace
} // namespace prgec

// The same noise for callers outside ExecuTorch: writes f32[q, numel], on the caller's thread.
extern "C" __attribute__((visibility("default"))) void prgec_randn(
    int64_t seed, int64_t step, int64_t site, int64_t q, int64_t numel, float* out) {
  const prgec::NoiseKey key = prgec::noise_key(seed, step, site);
  const int64_t tiles = prgec::num_tiles(numel);
  for (int64_t index = 0; index < q * tiles; ++index) {
    prgec::write_tile(key, index / tiles, index % tiles, numel, out);
  }
}

EXECUTORCH_LIBRARY(prge, "randn.out", prgec::randn_out);
