#include "engine/choose/pipeline_cut.h"

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <limits>

#include "engine/plan/pipeline.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// Limits on each stage.
struct Limits {
  double seconds;
  int64_t bytes;
};

/// Fills the stages from the last to the first, each with as many uses as the limits allow. Any cut within the limits
/// can be changed into this one by moving uses to later stages, so the result is nullopt only if there is no such cut.
std::optional<PipelineCut> fill(const CutProblem& problem, const Limits& limits) {
  const auto stages = static_cast<int>(problem.in_flight.size());
  PipelineCut cut(problem.in_flight.size(), 0);
  auto next = static_cast<int>(problem.uses.size()) - 1;
  for (int stage = stages - 1; stage >= 0; --stage) {
    double seconds = 0;
    int64_t bytes = 0;
    int& count = cut[static_cast<std::size_t>(stage)];
    for (; next >= stage; --next, ++count) {  // leaves at least one use for each earlier stage
      const UseLoad& use = problem.uses[static_cast<std::size_t>(next)];
      seconds += use.seconds;
      bytes += use.persistent_bytes + use.saved_bytes * problem.in_flight[static_cast<std::size_t>(stage)];
      if (seconds > limits.seconds || bytes > limits.bytes) break;
    }
    if (count == 0) return std::nullopt;
  }
  return next < 0 ? std::optional(cut) : std::nullopt;
}

/// The smallest of the non-negative numbers below `high` for which fill() succeeds with limits_of(number), or `high`.
/// The order of non-negative doubles is the order of their bits, so the same search serves bytes and seconds.
template <typename LimitsOf>
uint64_t smallest(const CutProblem& problem, uint64_t high, const LimitsOf& limits_of) {
  uint64_t low = 0;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (fill(problem, limits_of(middle))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

}  // namespace

PipelineCut cut_pipeline(const CutProblem& problem) {
  if (problem.in_flight.empty()) throw UsageError("the pipeline has 0 stages: expected 1 or more");
  if (problem.uses.size() < problem.in_flight.size())
    throw UsageError(
        fmt::format("{} pipeline stages, but the model has only {} uses: expected at most one stage per use",
                    problem.in_flight.size(), problem.uses.size()));
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max();
  const int64_t budget = problem.budget_bytes.value_or(kMaxBytes);
  if (!fill(problem, {kNoLimit, budget})) {
    const uint64_t least = smallest(problem, static_cast<uint64_t>(kMaxBytes), [&](uint64_t bytes) {
      return Limits{kNoLimit, static_cast<int64_t>(bytes)};
    });
    throw UsageError(
        fmt::format("no cut into {} pipeline stages fits in {} bytes per rank: the smallest sufficient "
                    "budget is {} bytes",
                    problem.in_flight.size(), budget, least));
  }
  const uint64_t seconds = smallest(problem, std::bit_cast<uint64_t>(kNoLimit), [&](uint64_t bits) {
    return Limits{std::bit_cast<double>(bits), budget};
  });
  return *fill(problem, {std::bit_cast<double>(seconds), budget});
}

PipelineCut cut_pipeline(const ModelSpec& model, int stages, const CostModel& cost) {
  std::vector<UseLoad> loads;
  for (std::size_t use = 0; use < model.uses.size(); ++use) {
    double seconds = 0;
    if (use < cost.uses.size()) {
      seconds = cost.uses[use].forward_seconds + cost.uses[use].backward_seconds;
    } else {
      for (const UnitId unit : model.uses[use]) {
        for (const ParameterSpec& parameter : model.units[unit].parameters)
          seconds += static_cast<double>(parameter.tensor.element_count());
      }
    }
    loads.push_back({.seconds = seconds});
  }
  // The cut counts tied uses as part of the first stage, but the last stage runs them. Times of uses therefore add to
  // the load of the last use. Numbers of elements do not, because the last use already counts the shared parameters.
  const auto uses = static_cast<int32_t>(loads.size());
  const int32_t tied = stages > 1 ? tied_uses(model, std::max(uses - stages, 0), uses - 1) : 0;
  for (int32_t use = 0; use < tied && !cost.uses.empty(); ++use)
    loads.back().seconds += loads[static_cast<std::size_t>(use)].seconds;
  const std::span<const UseLoad> others = std::span(loads).subspan(static_cast<std::size_t>(tied));
  PipelineCut cut = cut_pipeline({.uses = others, .in_flight = std::vector<int>(static_cast<std::size_t>(stages), 1)});
  cut.front() += tied;
  return cut;
}

}  // namespace aliquot
