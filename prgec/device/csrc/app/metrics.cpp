#include "metrics.h"

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "fail.h"
#include "files.h"
#include "journal_reader.h"
#include "policy.h"

namespace prge {

namespace {

// Seventeen digits name an f64 exactly.
std::string text(double value) {
  char buffer[32];
  snprintf(buffer, sizeof(buffer), "%.17g", value);
  return std::isfinite(value) ? buffer : "null";
}

// The limit applied to a step whose coefficients are not those its losses give.
std::string intervention(const Record& record, Estimator& estimator) {
  std::vector<double> measured(record.g.size());
  estimator.coefficients(record.losses.data(), static_cast<int64_t>(measured.size()), record.eps, measured.data());
  bool is_same = true, is_zero = true;
  for (size_t i = 0; i < measured.size(); ++i) {
    is_same = is_same && static_cast<float>(measured[i]) == record.g[i];
    is_zero = is_zero && record.g[i] == 0;
  }
  return is_same ? "" : is_zero ? ", \"limited\": \"skipped\"" : ", \"limited\": \"clipped\"";
}

// The update of a step: coefficients, or, where it perturbed nothing, its own gradient.
std::string update_of(const Record& record, Estimator& estimator) {
  if (record.eps == 0) {
    const float norm = record.g[0];
    return "\"grad_norm\": " + text(norm) + (std::isfinite(norm) ? "" : ", \"limited\": \"skipped\"");
  }
  std::string g;
  for (const float value : record.g) {
    g += (g.empty() ? "" : ", ") + text(value);
  }
  return "\"g\": [" + g + "]" + intervention(record, estimator);
}

std::string line_of(const Record& record, Estimator& estimator) {
  const std::string head = "{\"step\": " + std::to_string(record.step);
  if (record.kind == RecordKind::Evaluation) {
    return head + ", \"eval_loss\": " + text(record.loss) + ", \"eval_accuracy\": " + text(record.accuracy) + "}\n";
  }
  const double loss = ordered_mean(record.losses.data(), record.losses.size());
  return head + ", \"loss\": " + text(loss) + ", \"lr\": " + text(record.lr) + ", " + update_of(record, estimator) +
      "}\n";
}

} // namespace

Error write_metrics(const std::string& journal, const std::string& path) {
  auto reader = JournalReader::open(journal);
  PRGE_TRY(reader.error());
  AtomicFile file(path);
  PRGE_TRY(file.open());
  // The journal is this run's own: its estimator has a name that is known, or it is an optimiser's, which needs none.
  Estimator estimator(estimator_named((*reader)->header().estimator).value_or(EstimatorKind::Plain));
  for (Record record; (*reader)->next(record);) {
    if (record.kind != RecordKind::State) {
      const std::string line = line_of(record, estimator);
      PRGE_TRY(file.write(line.data(), line.size()));
    }
  }
  return file.commit();
}

} // namespace prge
