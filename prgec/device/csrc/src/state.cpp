#include <algorithm>
#include <string>

#include "program.h"

namespace prge {

namespace {

constexpr int64_t kChunk = 1024;

Digest sha256_of(const std::vector<StateTensor>& tensors) {
  Sha256 sha256;
  float chunk[kChunk];
  for (const StateTensor& each : tensors) {
    const std::string head = each.name + " " + each.shape_text(", ") + "\n";
    sha256.update(head.data(), head.size());
    for (int64_t at = 0; at < each.numel(); at += kChunk) {
      const int64_t count = std::min(kChunk, each.numel() - at);
      each.master(at, count, chunk);
      sha256.update(chunk, static_cast<size_t>(count) * sizeof(float));
    }
  }
  return sha256.finish();
}

} // namespace

int64_t StateTensor::numel() const {
  int64_t product = 1;
  for (const int64_t size : shape) {
    product *= size;
  }
  return product;
}

std::string StateTensor::shape_text(const char* between) const {
  std::string text = "[";
  for (const int64_t size : shape) {
    text += (text.size() > 1 ? between : "") + std::to_string(size);
  }
  return text + "]";
}

void StateTensor::master(int64_t first, int64_t count, float* to) const {
  const int64_t size = numel();
  for (int64_t i = first; i < first + count; ++i) {
    double sum = data[i];
    for (int64_t copy = 1; copy < copies; ++copy) {
      sum = sum + data[copy * size + i];
    }
    to[i - first] = static_cast<float>(sum / static_cast<double>(copies));
  }
}

State Program::state() const {
  State state;
  for (const auto* tensors : {&sites_, &optimizer_}) {
    for (const StateTensor& each : *tensors) {
      state.emplace_back(each.data, each.data + each.numel());
    }
  }
  return state;
}

void Program::set_state(const State& state) {
  auto from = state.begin();
  for (const auto* tensors : {&sites_, &optimizer_}) {
    for (const StateTensor& each : *tensors) {
      std::copy(from->begin(), from->end(), each.data);
      ++from;
    }
  }
}

void Program::forget_steps() {
  for (const StateTensor& each : optimizer_) {
    std::fill_n(each.data, each.numel(), 0.0f);
  }
}

Digest Program::masters_sha256() const {
  return sha256_of(sites_);
}

Digest Program::optimizer_sha256() const {
  return sha256_of(optimizer_);
}

} // namespace prge
