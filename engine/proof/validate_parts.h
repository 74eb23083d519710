#pragma once
// The parts of validate(), each with one question.

#include "engine/plan/accesses.h"
#include "engine/plan/happens_before.h"
#include "engine/proof/validate.h"

namespace aliquot {

/// Collects what is wrong, and stops counting when nobody would read on.
class Defects {
 public:
  explicit Defects(const Plan& plan) : plan_(plan) {}

  void add(DefectKind kind, std::vector<OperationId> operations, std::string sentence) {
    constexpr std::size_t kMost = 200;
    if (found_.size() < kMost) found_.push_back({kind, std::move(operations), std::move(sentence)});
  }
  /// "update h.0 (operation 21)".
  std::string describe(OperationId operation) const;
  /// "gradients of h.0".
  std::string describe(const PlannedBuffer& buffer) const;

  bool empty() const { return found_.empty(); }
  std::vector<Defect> take() { return std::move(found_); }

 private:
  const Plan& plan_;
  std::vector<Defect> found_;
};

struct Proof {
  const Plan& plan;
  const HappensBefore& order;
  Accesses& accesses;
  Defects& defects;
};

/// Numbers name something, waits point back. The other parts may count on both.
void check_well_formed(const Plan& plan, Defects& defects);
/// Units are whole when used and let go afterwards; the model's code comes as declared.
void check_uses(const Proof& proof);
/// What is gathered in eight bits was encoded in this step, once.
void check_quantized(const Proof& proof);
/// Every gradient is reduced, counted in the norm and applied, once.
void check_gradients(const Proof& proof);
/// Every group of matrices goes to its owners and back, once, between the norm and its units' updates.
void check_matrices(const Proof& proof);
/// Buffers lie in their memory, and are as large as what goes into them.
void check_places(const Proof& proof);
/// What a buffer must at least hold, counted without what the writer counts by. `node_count` is the topology's, which takes a
/// walk over all ranks to count.
int64_t required_bytes(const Plan& plan, const PlannedBuffer& buffer, int node_count);
/// What is offloaded comes before it is used, and is taken back once it was changed.
void check_offload(const Proof& proof);
/// Nobody writes what another may still touch.
void check_races(const Proof& proof);

}  // namespace aliquot
