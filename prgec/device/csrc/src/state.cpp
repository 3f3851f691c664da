#include <algorithm>
#include <string>

#include "program.h"

namespace prge {

namespace {

constexpr int64_t kChunk = 1024;

} // namespace

void SiteState::master(int64_t first, int64_t count, float* to) const {
  for (int64_t i = first; i < first + count; ++i) {
    double sum = data[i];
    for (int64_t copy = 1; copy < copies; ++copy) {
      sum = sum + data[copy * numel() + i];
    }
    to[i - first] = static_cast<float>(sum / static_cast<double>(copies));
  }
}

State Program::state() const {
  State state;
  for (const SiteState& site : sites_) {
    state.emplace_back(site.data, site.data + site.numel());
  }
  return state;
}

void Program::set_state(const State& state) {
  for (size_t i = 0; i < state.size(); ++i) {
    std::copy(state[i].begin(), state[i].end(), sites_[i].data);
  }
}

Digest Program::masters_sha256() const {
  Sha256 sha256;
  float chunk[kChunk];
  for (const SiteState& site : sites_) {
    const std::string head = site.name + " [" + std::to_string(site.rank) + ", " + std::to_string(site.out) + "]\n";
    sha256.update(head.data(), head.size());
    for (int64_t at = 0; at < site.numel(); at += kChunk) {
      const int64_t count = std::min(kChunk, site.numel() - at);
      site.master(at, count, chunk);
      sha256.update(chunk, static_cast<size_t>(count) * sizeof(float));
    }
  }
  return sha256.finish();
}

} // namespace prge
