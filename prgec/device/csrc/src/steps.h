// The interface of training steps, of either kind: the trainer, its journal and its evaluations know no more.
#pragma once

#include <memory>

#include "choices.h"
#include "journal.h"
#include "prge/error.h"
#include "prge/trainer.h"
#include "program.h"

namespace prge {

class Steps {
 public:
  // Steps of the kind the program takes.
  static std::unique_ptr<Steps> of(Program& program, const Settings& settings, const Choices& choices);
  virtual ~Steps() = default;

  // Runs the rows the program was filled with, the first ones of a step of several calls.
  virtual Error gather();
  // Runs the rows the program was filled with, the last ones of a step; fills in the record of the step it names. After
  // an error the state is that of the step before, and nothing is pending.
  virtual Error measure(Record& record) = 0;
  // The step counts: its update may be pending from now on.
  virtual void accept(const Record& record) = 0;
  // Does what is pending, so that the state is the trained one.
  virtual Error flush() = 0;
  // Losses of the rows the program was filled with, under weights as they are. Nothing may be pending.
  virtual Result<const float*> losses() = 0;

  // Resuming a run: observes each of its steps once and in order.
  virtual void observe(const Record& record) = 0;
  // Does to the state what a step did to it; only where `can_replay`. Elsewhere steps are taken again.
  virtual Error replay(const Record& record) = 0;
  virtual bool can_replay() const = 0;

  // Writes what is its own into a journal's header.
  virtual void describe(JournalHeader& header) const = 0;
};

} // namespace prge
