// A .pte that follows prgec's graph contract (docs/contract.md): its methods, its state, and the inputs of one call.
#pragma once

#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/core/evalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checksum.h"
#include "kv_cache.h"
#include "manifest.h"
#include "packed_weights.h"
#include "prge/error.h"
#include "prge/rows.h"
#include "prge/trainer.h"

namespace prge {

// One tensor of what training changes: the trainable buffer of a site, f32[copies, rank, out], or a part of an
// optimiser's state. One copy, or 2q in dual state. Alive and writable: in the program, or here where this driver keeps
// it; or, where the manifest says that forward returns it, what the last call returned.
struct StateTensor {
  std::string name;
  float* data = nullptr;
  int64_t copies = 1;
  std::vector<int64_t> shape; // of a copy

  int64_t numel() const;
  // As JSON and Python write it, with `between` the sizes.
  std::string shape_text(const char* between) const;
  // Master of the copies from element `first`: their mean, summed in order.
  void master(int64_t first, int64_t count, float* to) const;
};

// Size of a step's factors, and of the first part of an optimiser's state.
constexpr int64_t kNumFactors = 4;

// Which call of its step a call is, where a step is several: how many came before, and whether the step is taken in
// this one. Others only gather.
struct Call {
  int64_t before = 0;
  bool is_last = true;
};

// Most tokens of one call of `extend`: longer texts are read in parts.
constexpr size_t kExtendTokens = 128;

// The numbers by which a step changes and perturbs weights.
struct StepInputs {
  std::vector<float> g; // of the step before
  float lr = 0; // that belongs to it
  float eps = 0;
  int64_t seed = 0, step = 0;
};

// A copy of the trainable buffers, site by site, and of an optimiser's state.
using State = std::vector<std::vector<float>>;

class Program {
 public:
  using Inputs = std::vector<executorch::extension::TensorPtr>;

  // Uses the settings about the file: whether it is compared with its checksums, before ExecuTorch sees any of it, and
  // where its packed weights are.
  static Result<std::unique_ptr<Program>> open(const std::string& path, const Settings& settings = {});
  ~Program();

  const Manifest& manifest() const {
    return manifest_;
  }
  const Digest& tokenizer_sha256() const {
    return tokenizer_sha256_;
  }
  // The token that ends a text, where the tokenizer has one.
  std::optional<uint32_t> eos_id() const {
    return eos_id_;
  }
  // In the order of the manifest.
  const std::vector<StateTensor>& sites() const {
    return sites_;
  }
  // An optimiser's state beside them, with the part that all sites share first; empty where the host takes the steps.
  const std::vector<StateTensor>& optimizer() const {
    return optimizer_;
  }

  // A of every site, f32[rank, in], where they were given and not drawn: read from the program, and valid as long as
  // it.
  Result<std::vector<StateTensor>> stored_lora_a() const;

  // Places num_rows() rows into the inputs of the next forward, padded as the program wants them.
  void fill(const std::vector<Row>& rows);
  // Runs forward on those rows, after the update of the step before and with the perturbation of this one. Returns the
  // loss of every row: f32[num_rows()], valid until the next call.
  Result<const float*> forward(StepInputs& step);
  // Makes the update alone, which looks at no row.
  Error apply(StepInputs& step);
  // Runs forward of a program with gradients on those rows, which trains on them. Returns the losses before the step,
  // and the factors of the step: the gradient's scale, 0 where it was not finite and changed nothing, its norm, and the
  // corrections of running means. There are several calls only where the manifest says that it accumulates.
  Result<const float*> train(float lr, const Call& call, std::vector<float>& factors);
  // Returns the losses of those rows and changes nothing. Loads the method when it is first needed.
  Result<const float*> evaluate();

  // Reads at most kExtendTokens tokens at the positions from `start` on, after those in the cache. Returns the logits
  // after the last one: f32[vocab_size], valid until the next call.
  Result<const float*> extend(const uint32_t* ids, size_t count, size_t start);
  // Clears the cache. A NaN left in it would poison every attention sum, even at weight 0.
  Error clear_cache();
  // The text that the cache holds, for whoever reads with it.
  std::vector<uint32_t>& held() {
    return held_text_;
  }
  // Lets text `row` of `decode` be the first `count` tokens that `extend` has read, whatever it was before.
  Error fork(size_t row, size_t count);
  // Reads tokens[r] of each of the manifest's `rollouts` texts at the position starts[r]. Returns the logits after
  // them: f32[rollouts, vocab_size], valid until the next call.
  Result<const float*> decode(const std::vector<int64_t>& tokens, const std::vector<int64_t>& starts);

  // Only for programs that are not dual.
  State state() const;
  void set_state(const State& state);
  // Makes an optimiser's state what it is before the first step.
  void forget_steps();
  // Takes the memory of the longest call there is, once; an optimiser must not have taken a step, since it forgets it.
  // A first step does it otherwise.
  Error make_room();
  // SHA-256 over the names, shapes and values of all masters.
  Digest masters_sha256() const;
  // The same of an optimiser's state.
  Digest optimizer_sha256() const;

 private:
  class Methods;
  Program(std::string path, const Settings& settings);
  Error read(bool verify);
  Error load(const std::string& data_path);
  Error read_constants();
  Error load_methods();
  // Number of last inputs that are the result of a prefix method.
  size_t num_hidden() const {
    return manifest_.prefix == Prefix::Method ? 1 : 0;
  }
  // Loads a method that takes so many inputs, if that is known.
  Error load_method(const char* name, std::optional<size_t> num_inputs = std::nullopt);
  Error find_state();
  Error find_optimizer();
  Error bind(StateTensor& state);
  void hold(StateTensor& state);
  void allocate();
  // Inputs of a call over rows, and of forward what each label counts, where it says so.
  Result<Inputs> with_rows(const Inputs& others, bool is_forward = true);
  Error keep_losses(const std::vector<executorch::runtime::EValue>& outputs, const char* method, size_t num_outputs);
  Error keep_state(const std::vector<executorch::runtime::EValue>& outputs);
  Result<std::vector<executorch::runtime::EValue>> execute(const char* method, const Inputs& inputs);
  Error run_prefix();
  Error run_longest();
  Error load_extend();
  Error load_decode();
  // The values of logits of so many texts.
  Result<const float*> checked(const Result<executorch::aten::Tensor>& logits, const char* method, int64_t rows);

  // program_host.cpp: of a program whose state is kept here.
  Inputs masters();
  Result<Inputs> perturbed(const StepInputs& step);
  Error update(const StepInputs& step, bool with_copies);
  Result<const float*> differentiate(float lr, const Call& call, std::vector<float>& factors);
  Error gather(const std::vector<const float*>& gradients, const Call& call);
  Error take_step(const std::vector<const float*>& gradients, const float* losses, float lr, float* factors);

  std::string path_;
  PackedWeights packed_; // outlives the methods that have them mapped
  Manifest manifest_;
  Digest tokenizer_sha256_ = {};
  std::optional<uint32_t> eos_id_;
  std::unique_ptr<Methods> methods_;
  std::vector<StateTensor> sites_, optimizer_;
  bool can_evaluate_ = false;
  bool has_room_ = false; // for rows of any length
  KeyValueCache cache_; // open once `extend` is loaded
  std::vector<uint32_t> held_text_;
  RowCaches caches_; // open once `decode` is loaded
  // The memory of a state that is not in buffers of the program: what forward returned, or what is kept here.
  State held_;
  State copies_; // of B, perturbed, site by site
  State sums_; // of a step of several calls: losses, then gradients

  // Inputs, allocated once for the largest call.
  int32_t num_tokens_ = 0; // T of the present call
  std::vector<int64_t> tokens_, label_pos_, targets_;
  std::vector<float> weights_, hidden_, losses_;
};

} // namespace prge
