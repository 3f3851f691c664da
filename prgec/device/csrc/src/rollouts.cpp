#include "prge/rollouts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "advantages.h"
#include "answer_writer.h"
#include "fail.h"
#include "philox.h"
#include "trainer_impl.h"

namespace prge {

namespace {

// Counters that no noise, no order of rows and no draw of a token uses (docs/decisions/002-noise.md).
constexpr uint32_t kAnswerQuery = 0xfffffffcu;

// The seed of the draws of one answer.
uint64_t answer_seed(uint64_t seed, uint64_t step, uint32_t call, size_t number) {
  const prgec::PhiloxKey key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(step)};
  const prgec::Words4 x =
      prgec::philox4x32({static_cast<uint32_t>(number), kAnswerQuery, call, static_cast<uint32_t>(seed >> 32)}, key);
  return (uint64_t{x.x1} << 32 | x.x0) >> 1;
}

// The rows that learn answers. Their arrays are here, and the rows point into them.
struct Learnt {
  std::vector<std::vector<uint32_t>> tokens, label_pos;
  std::vector<std::vector<float>> weights;
  std::vector<Row> rows;

  // The last token of an answer is predicted, and never read.
  void add(const std::vector<uint32_t>& prompt, const std::vector<uint32_t>& answer, double weight) {
    std::vector<uint32_t> text = prompt;
    text.insert(text.end(), answer.begin(), answer.end() - 1);
    std::vector<uint32_t> places(answer.size());
    std::iota(places.begin(), places.end(), static_cast<uint32_t>(prompt.size()) - 1);
    tokens.push_back(std::move(text));
    label_pos.push_back(std::move(places));
    weights.emplace_back(answer.size(), static_cast<float>(weight));
    Row row;
    row.tokens = tokens.back().data();
    row.label_pos = label_pos.back().data();
    row.targets = answer.data();
    row.num_tokens = static_cast<uint32_t>(tokens.back().size());
    row.num_labels = static_cast<uint32_t>(answer.size());
    row.weights = weights.back().data();
    rows.push_back(row);
  }
};

} // namespace

class Rollouts::Impl {
 public:
  Impl(Trainer& trains, Trainer::Impl& its, const RolloutSettings& given)
      : trainer(trains), inside(its), settings(given) {}

  const Manifest& manifest() const {
    return inside.manifest;
  }
  uint32_t prompts_per_call() const {
    return inside.shape.batch_size / settings.group;
  }
  Error check() const;
  Result<RewardStep> judged(std::vector<Written> answers, const Reward& reward) const;

  Trainer& trainer;
  Trainer::Impl& inside;
  RolloutSettings settings;
};

Error Rollouts::Impl::check() const {
  if (manifest().context == 0 || !manifest().has_label_weights) {
    return fail(
        Error::InvalidProgram,
        "rewards need a program that writes answers and weighs labels. Hint: compile it with --method exact "
        "--label-weights --generate --context C");
  }
  if (settings.group < 2 || inside.shape.batch_size % settings.group != 0) {
    return fail(
        Error::InvalidArgument, "%u answers to a prompt do not fill the %u rows of a call", settings.group,
        inside.shape.batch_size);
  }
  if (settings.max_tokens < 1 || settings.max_tokens > manifest().num_labels) {
    return fail(
        Error::InvalidArgument, "an answer may have %u tokens; expected 1 to %lld", settings.max_tokens,
        static_cast<long long>(manifest().num_labels));
  }
  return Sampler::check({settings.temperature, settings.top_k, settings.top_p, 0});
}

Rollouts::Rollouts(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Rollouts::~Rollouts() = default;

Result<std::unique_ptr<Rollouts>> Rollouts::of(Trainer& trainer, const RolloutSettings& settings) {
  auto impl = std::make_unique<Impl>(trainer, *trainer.impl_, settings);
  if (impl->settings.max_tokens == 0) {
    impl->settings.max_tokens = static_cast<uint32_t>(impl->manifest().num_labels);
  }
  const auto eos = impl->inside.program->eos_id();
  if (impl->settings.ends.empty() && eos) {
    impl->settings.ends.push_back(*eos);
  }
  PRGE_TRY(impl->check());
  return std::unique_ptr<Rollouts>(new Rollouts(std::move(impl)));
}

uint32_t Rollouts::prompts_per_step() const {
  return impl_->prompts_per_call() * impl_->inside.settings.accumulate;
}

Result<std::vector<Written>> Rollouts::write(const std::vector<std::vector<uint32_t>>& prompts) {
  const RolloutSettings& settings = impl_->settings;
  const auto seed = static_cast<uint64_t>(impl_->inside.settings.seed);
  const size_t per_call = size_t{impl_->prompts_per_call()} * settings.group;
  std::vector<OpenText> texts;
  for (const std::vector<uint32_t>& prompt : prompts) {
    for (uint32_t copy = 0; copy < settings.group; ++copy) {
      const size_t number = texts.size();
      const uint64_t its = answer_seed(
          seed, impl_->trainer.steps_done() + 1, static_cast<uint32_t>(number / per_call), number % per_call);
      texts.push_back({&prompt, Sampler({settings.temperature, settings.top_k, settings.top_p, its}), {}});
    }
  }
  PRGE_TRY(AnswerWriter(*impl_->inside.program, settings.max_tokens, settings.ends).write(texts));
  std::vector<Written> out;
  for (OpenText& text : texts) {
    out.push_back({out.size() / settings.group, std::move(text.ids)});
  }
  return out;
}

Result<RewardStep> Rollouts::Impl::judged(std::vector<Written> answers, const Reward& reward) const {
  RewardStep out;
  for (const Written& answer : answers) {
    out.rewards.push_back(reward(answer));
    if (!std::isfinite(out.rewards.back())) {
      return fail(Error::InvalidExternalData, "the reward of answer %zu is not finite", out.rewards.size());
    }
  }
  out.reward = std::accumulate(out.rewards.begin(), out.rewards.end(), 0.0) / static_cast<double>(answers.size());
  out.answers = std::move(answers);
  return out;
}

Result<RewardStep> Rollouts::step(const std::vector<std::vector<uint32_t>>& prompts, const Reward& reward) {
  if (prompts.size() != prompts_per_step()) {
    return fail(Error::InvalidArgument, "a step takes %u prompts, not %zu", prompts_per_step(), prompts.size());
  }
  auto answers = write(prompts);
  PRGE_TRY(answers.error());
  auto out = impl_->judged(std::move(*answers), reward);
  PRGE_TRY(out.error());
  std::vector<size_t> lengths;
  for (const Written& answer : out->answers) {
    lengths.push_back(answer.ids.size());
  }
  const RolloutSettings& settings = impl_->settings;
  const std::vector<double> weights =
      label_weights(settings.advantage, out->rewards, lengths, settings.group, settings.max_tokens);
  Learnt learnt;
  for (size_t i = 0; i < weights.size(); ++i) {
    learnt.add(prompts[out->answers[i].prompt], out->answers[i].ids, weights[i]);
  }
  const auto result = impl_->trainer.step(learnt.rows);
  PRGE_TRY(result.error());
  out->step = *result;
  return out;
}

} // namespace prge
