#include "prge/generator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "adapter.h"
#include "fail.h"
#include "program.h"
#include "sampler.h"
#include "trainer_impl.h"

namespace prge {

class Generator::Impl {
 public:
  explicit Impl(std::unique_ptr<Program> opened) : own(std::move(opened)), program(own.get()), sampler(Sampling()) {}
  Impl(Trainer& trains, Program& its) : trainer(&trains), program(&its), sampler(Sampling()) {}

  const Manifest& manifest() const {
    return program->manifest();
  }
  Error check(const std::vector<uint32_t>& prompt) const;
  Error catch_up();
  Result<const float*> read(const std::vector<uint32_t>& text);

  Trainer* trainer = nullptr; // whose program it is, unless it is an own one
  std::unique_ptr<Program> own;
  Program* program;
  std::string weights; // hash of those that a trainer had when the cache was filled
  Sampler sampler;
  std::vector<uint32_t> held; // what the cache holds
};

Error Generator::Impl::check(const std::vector<uint32_t>& prompt) const {
  if (prompt.empty()) {
    return fail(Error::InvalidExternalData, "there is no text to continue");
  }
  for (const uint32_t id : prompt) {
    if (id >= manifest().vocab_size) {
      return fail(
          Error::InvalidExternalData, "token %u is not one of the program's %lld", id,
          static_cast<long long>(manifest().vocab_size));
    }
  }
  if (prompt.size() > static_cast<uint64_t>(manifest().context)) {
    return fail(
        Error::InvalidExternalData,
        "the text has %zu tokens, and the program's cache holds %lld. Hint: compile it with a larger --context",
        prompt.size(), static_cast<long long>(manifest().context));
  }
  return Error::Ok;
}

// Forgets what was read under weights that a trainer has changed since.
Error Generator::Impl::catch_up() {
  if (trainer == nullptr) {
    return Error::Ok;
  }
  const auto now = trainer->state_sha256();
  PRGE_TRY(now.error());
  if (*now != weights) {
    held.clear();
    weights = *now;
  }
  return Error::Ok;
}

// Returns the logits after a text; only the tokens after its common prefix with the last text are read.
Result<const float*> Generator::Impl::read(const std::vector<uint32_t>& text) {
  const size_t most = std::min(held.size(), text.size() - 1); // logits come from a token that is read
  const auto shared = std::mismatch(held.begin(), held.begin() + static_cast<int64_t>(most), text.begin());
  held.erase(shared.first, held.end());
  if (held.empty()) {
    PRGE_TRY(program->clear_cache());
  }
  const float* logits = nullptr;
  while (held.size() < text.size()) {
    const size_t first = held.size(), count = std::min(kExtendTokens, text.size() - first);
    const auto found = program->extend(&text[first], count, first);
    PRGE_TRY(found.error());
    logits = *found;
    held.insert(held.end(), &text[first], &text[first] + count);
  }
  if (std::any_of(logits, logits + manifest().vocab_size, [](float each) { return std::isnan(each); })) {
    held.clear();
    return fail(
        Error::InvalidProgram,
        "the program computes values that are not finite: its trained weights are too large. Hint: take an earlier "
        "adapter");
  }
  return logits;
}

Generator::Generator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Generator::~Generator() = default;

Result<std::unique_ptr<Generator>> Generator::open(const std::string& program_path, const Opening& opening) {
  Settings settings;
  settings.verify = opening.verify;
  settings.packed_weights = opening.packed_weights;
  settings.warn = opening.warn;
  auto program = Program::open(program_path, settings);
  PRGE_TRY(program.error());
  PRGE_TRY((*program)->clear_cache());
  return std::unique_ptr<Generator>(new Generator(std::make_unique<Impl>(std::move(*program))));
}

Result<std::unique_ptr<Generator>> Generator::of(Trainer& trainer) {
  Program& program = *trainer.impl_->program;
  PRGE_TRY(program.clear_cache());
  return std::unique_ptr<Generator>(new Generator(std::make_unique<Impl>(trainer, program)));
}

uint32_t Generator::context() const {
  return static_cast<uint32_t>(impl_->manifest().context);
}

uint32_t Generator::vocab_size() const {
  return static_cast<uint32_t>(impl_->manifest().vocab_size);
}

std::optional<uint32_t> Generator::eos_id() const {
  return impl_->program->eos_id();
}

Error Generator::load_adapter(const std::string& path) {
  PRGE_TRY(impl_->trainer ? impl_->trainer->load_adapter(path) : prge::load_adapter(path, *impl_->program));
  impl_->held.clear();
  return Error::Ok;
}

Error Generator::sample(const Sampling& sampling) {
  PRGE_TRY(Sampler::check(sampling));
  impl_->sampler = Sampler(sampling);
  return Error::Ok;
}

Result<Answer> Generator::answer(const std::vector<uint32_t>& prompt, const Limits& limits, const OnToken& on_token) {
  PRGE_TRY(impl_->check(prompt));
  PRGE_TRY(impl_->catch_up());
  Answer out;
  std::vector<uint32_t> text = prompt;
  while (out.ids.size() < limits.max_tokens) {
    if (text.size() > context()) {
      out.end = End::Full;
      break;
    }
    const auto logits = impl_->read(text);
    PRGE_TRY(logits.error());
    const uint32_t token = impl_->sampler.choose(*logits, vocab_size());
    if (std::find(limits.ends.begin(), limits.ends.end(), token) != limits.ends.end()) {
      out.end = End::Token;
      break;
    }
    text.push_back(token);
    out.ids.push_back(token);
    if (on_token && !on_token(token)) {
      out.end = End::Stopped;
      break;
    }
  }
  return out;
}

} // namespace prge
