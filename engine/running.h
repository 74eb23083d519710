#pragma once
// What exists once an engine is materialized.

#include "engine/bindings.h"
#include "engine/engine.h"
#include "engine/executor.h"

namespace aliquot {

struct Engine::Running final : StepDecision {
  Running(Engine& of, std::vector<std::vector<PointerSlots>> slots)
      : engine(of),
        memory(*of.plan_, of.world_.communicator(), of.world_.device().ledger()),
        updater(*of.plan_, memory, of.world_.device(), of.options_.optimizer, of.world_.rank()),
        bindings(*of.plan_, memory, std::move(slots)),
        executor({*of.plan_, of.world_, memory, updater, *this}) {}

  UpdateStep decide(const NormResult& norm) override;

  Engine& engine;
  StepMemory memory;
  Updater updater;
  Bindings bindings;
  Executor executor;
  StepReport report;           // of the step being decided
  int micro_batch = -1;        // begun, of this step
  std::vector<UnitId> live;    // of the scope that is open
  std::exception_ptr failure;  // of closing a scope
};

}  // namespace aliquot
