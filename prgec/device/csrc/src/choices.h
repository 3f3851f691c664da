// Settings checked as a whole, their names turned into values once: no step compares text.
#pragma once

#include <optional>
#include <string_view>

#include "prge/error.h"
#include "prge/trainer.h"

namespace prge {

enum class Schedule { Constant, Linear, Cosine };
enum class EstimatorKind { Plain, Norm, Std };
enum class OverLimit { Clip, Skip };
enum class NotFinite { Stop, Skip };

struct Choices {
  // Refuses settings that make no sense, in one line that says which.
  static Result<Choices> parse(const Settings& settings);

  Schedule schedule = Schedule::Linear;
  EstimatorKind estimator = EstimatorKind::Norm;
  OverLimit over_limit = OverLimit::Clip;
  NotFinite not_finite = NotFinite::Stop;
};

// Also of a journal's header.
std::optional<EstimatorKind> estimator_named(std::string_view name);

} // namespace prge
