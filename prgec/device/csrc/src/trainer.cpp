#include "prge/trainer.h"

#include <utility>

#include "adapter.h"
#include "fail.h"
#include "gradient_steps.h"
#include "policy.h"
#include "trainer_impl.h"
#include "zeroth_order.h"

namespace prge {

std::unique_ptr<Steps> Steps::of(Program& program, const Settings& settings, const Choices& choices) {
  if (program.manifest().has_gradients) {
    return std::make_unique<GradientSteps>(program, settings, choices);
  }
  return std::make_unique<ZerothOrder>(program, settings, choices);
}

Error Steps::gather() {
  return fail(Error::InvalidArgument, "this program's steps are one call each");
}

Trainer::Impl::Impl(std::unique_ptr<Program> opened, const Settings& chosen, const Choices& parsed)
    : program(std::move(opened)),
      manifest(program->manifest()),
      settings(chosen),
      choices(parsed),
      method(Steps::of(*program, settings, choices)),
      divergence(settings.diverged, settings.window),
      rows(static_cast<size_t>(manifest.num_rows())) {
  shape = {
      static_cast<uint32_t>(manifest.q), static_cast<uint32_t>(manifest.batch_size),
      static_cast<uint32_t>(manifest.seq_len), static_cast<uint32_t>(manifest.num_labels),
      static_cast<uint32_t>(manifest.vocab_size)};
}

void Trainer::Impl::warn(const char* line) const {
  if (settings.warn != nullptr) {
    settings.warn(line);
  }
}

void Trainer::Impl::start_over() {
  program->forget_steps();
  method = Steps::of(*program, settings, choices);
  divergence = Divergence(settings.diverged, settings.window);
  steps_done = 0;
  evaluated_at = state_at = kNever;
}

void Trainer::Impl::fill(const Row* distinct, size_t count) {
  for (size_t n = 0; n < rows.size(); ++n) {
    rows[n] = distinct[n % count];
  }
  program->fill(rows);
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

Result<std::unique_ptr<Trainer>> Trainer::open(const std::string& program_path, const Settings& settings) {
  const auto choices = Choices::parse(settings);
  PRGE_TRY(choices.error());
  auto program = Program::open(program_path, settings);
  PRGE_TRY(program.error());
  if (settings.accumulate > 1 && !(*program)->manifest().accumulates) {
    return fail(
        Error::InvalidArgument,
        "--accumulate %u needs a program that gathers gradients (%s). Hint: compile it with --method exact "
        "--accumulate, or leave the flag out",
        settings.accumulate, program_path.c_str());
  }
  return std::unique_ptr<Trainer>(new Trainer(std::make_unique<Impl>(std::move(*program), settings, *choices)));
}

// A program or an eps that does not perturb shows in the first step.
void Trainer::Impl::warn_of_flatness() const {
  if (record.step != 1 || manifest.has_gradients) {
    return;
  }
  for (size_t pair = 0; pair < record.losses.size(); pair += 2) {
    if (record.losses[pair] != record.losses[pair + 1]) {
      return;
    }
  }
  warn("both signs of every query have the same loss, so nothing is learnt; raise --eps");
}

const Shape& Trainer::shape() const {
  return impl_->shape;
}

uint64_t Trainer::steps_done() const {
  return impl_->steps_done;
}

Result<StepResult> Trainer::step(const std::vector<Row>& batch) {
  Impl& t = *impl_;
  PRGE_TRY(t.divergence.check());
  PRGE_TRY(t.check_batch(batch));
  const size_t last = batch.size() - t.shape.batch_size;
  for (size_t first = 0; first < last; first += t.shape.batch_size) {
    t.fill(&batch[first], t.shape.batch_size);
    PRGE_TRY(t.method->gather());
  }
  t.fill(&batch[last], t.shape.batch_size);
  Record& record = t.record;
  record.kind = RecordKind::Step;
  record.step = t.steps_done + 1;
  record.lr = learning_rate(t.choices.schedule, t.rate(), t.settings.warmup, t.settings.steps, record.step);
  PRGE_TRY(t.method->measure(record));
  if (t.journal.is_open()) {
    PRGE_TRY(t.journal.write(record));
  }
  t.steps_done = record.step;
  t.method->accept(record);
  t.warn_of_flatness();
  const StepResult result = {record.step, ordered_mean(record.losses.data(), record.losses.size()), record.lr};
  t.divergence.observe(result.loss);
  PRGE_TRY(t.divergence.check());
  return result;
}

Error Trainer::save(const std::string& path) {
  PRGE_TRY(impl_->method->flush());
  return save_adapter(path, *impl_->program);
}

Error Trainer::load_adapter(const std::string& path) {
  Impl& t = *impl_;
  if (t.journal.is_open()) {
    return fail(Error::InvalidArgument, "an adapter is loaded before a run begins");
  }
  PRGE_TRY(t.method->flush());
  PRGE_TRY(prge::load_adapter(path, *t.program));
  t.start_over();
  return Error::Ok;
}

Result<std::string> Trainer::state_sha256() {
  PRGE_TRY(impl_->method->flush());
  return impl_->program->masters_sha256().hex();
}

} // namespace prge
