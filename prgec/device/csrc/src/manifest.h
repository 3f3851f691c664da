// The manifest of a program: the part of `prgec_manifest` a driver needs (prgec's docs/contract.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checksum.h"
#include "prge/error.h"

namespace prge {

// The contracts of programs that train by measured losses, and of those that compute their own gradients.
constexpr int64_t kContractVersion = 1;
constexpr int64_t kGradientContractVersion = 2;
constexpr int64_t kIgnoreTarget = -100;

struct Site {
  std::string name;
  int64_t index = 0;
  int64_t out_features = 0;

  std::string state_name() const {
    return name + ".lora_B";
  }
};

// How a host makes steps of gradients, besides the optimiser's name.
struct Update {
  double clip = 0, beta1 = 0, beta2 = 0, eps = 0, decay = 0, polyak = 0;
};

enum class Prefix { None, Shared, Method };

struct Manifest {
  static Result<Manifest> parse(std::string_view text);

  int64_t num_rows() const {
    return has_gradients ? batch_size : 2 * q * batch_size;
  }
  // Different rows one evaluation call can hold.
  int64_t num_distinct_rows() const {
    return prefix == Prefix::None ? num_rows() : batch_size;
  }
  // The tie of an adapter to its base model, as JSON: the metadata of its file, with or without the model's name, and
  // of a snapshot with the hash of the optimiser's state and the number of steps done.
  std::string adapter_metadata(bool with_model, const std::string& optimizer_sha256 = "", uint64_t step = 0) const;
  // Hash of what an adapter belongs to.
  Digest identity() const;

  int64_t q = 0, batch_size = 0, seq_len = 0, num_labels = 0, vocab_size = 0, rank = 0, hidden_size = 0;
  int64_t pad_token_id = 0;
  int64_t context = 0; // positions of the cache of `extend`; 0 where there is none
  int64_t rollouts = 0; // texts that `decode` continues at once; 0 where there is none
  bool is_dynamic = false;
  bool is_dual = false;
  // It computes gradients, and updates itself in the same call.
  bool has_gradients = false;
  // A step may be several calls, whose gradients are averaged.
  bool accumulates = false;
  // forward takes what each label counts in the loss that it differentiates.
  bool has_label_weights = false;
  // A table of checksums follows the program.
  bool has_checksums = false;
  // The state is not a buffer of the program: forward returns it after the losses, and there is no apply.
  bool returns_state = false;
  // The state is not a buffer of the program: this driver keeps it, passes it in, and changes it.
  bool is_host = false;
  Update update; // where there are gradients, too
  double lr = 3e-3; // of a run that names none; as before programs recorded it
  Prefix prefix = Prefix::None;
  std::string model, backend, base_sha256, pipeline;
  std::string optimizer; // norm, momentum or adamw where there are gradients; else empty
  std::string a_sha256; // of the A matrices where they were given; empty where they follow from a_seed
  std::string data_sha256; // of the file of weights beside the program; empty without one
  std::string alpha, a_seed; // as Python prints them
  std::vector<Site> sites;
};

} // namespace prge
