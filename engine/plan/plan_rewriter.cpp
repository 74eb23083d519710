#include "engine/plan/plan_rewriter.h"

#include <utility>

namespace aliquot {
namespace {

PlanRewriter current;

}  // namespace

void set_plan_rewriter(PlanRewriter rewriter) { current = std::move(rewriter); }

void rewrite_plans(std::vector<Plan>& stages) {
  if (current) current(stages);
}

}  // namespace aliquot
