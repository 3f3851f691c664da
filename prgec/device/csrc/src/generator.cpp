#include "prge/generator.h"

#include <algorithm>
#include <utility>

#include "adapter.h"
#include "fail.h"
#include "program.h"
#include "reader.h"
#include "sampler.h"
#include "trainer_impl.h"

namespace prge {

class Generator::Impl {
 public:
  explicit Impl(std::unique_ptr<Program> opened)
      : own(std::move(opened)), program(own.get()), sampler(Sampling()), reader(*program) {}
  Impl(Trainer& trains, Program& its) : trainer(&trains), program(&its), sampler(Sampling()), reader(its) {}

  const Manifest& manifest() const {
    return program->manifest();
  }
  Error catch_up();

  Trainer* trainer = nullptr; // whose program it is, unless it is an own one
  std::unique_ptr<Program> own;
  Program* program;
  std::string weights; // hash of those that a trainer had when the cache was filled
  Sampler sampler;
  Reader reader;
};

// Forgets what was read under weights that a trainer has changed since.
Error Generator::Impl::catch_up() {
  if (trainer == nullptr) {
    return Error::Ok;
  }
  const auto now = trainer->state_sha256();
  PRGE_TRY(now.error());
  if (*now != weights) {
    reader.forget();
    weights = *now;
  }
  return Error::Ok;
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
  impl_->reader.forget();
  return Error::Ok;
}

Error Generator::sample(const Sampling& sampling) {
  PRGE_TRY(Sampler::check(sampling));
  impl_->sampler = Sampler(sampling);
  return Error::Ok;
}

Result<Answer> Generator::answer(const std::vector<uint32_t>& prompt, const Limits& limits, const OnToken& on_token) {
  PRGE_TRY(impl_->reader.check(prompt));
  PRGE_TRY(impl_->catch_up());
  Answer out;
  std::vector<uint32_t> text = prompt;
  while (out.ids.size() < limits.max_tokens) {
    if (text.size() > context()) {
      out.end = End::Full;
      break;
    }
    const auto logits = impl_->reader.read(text);
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
