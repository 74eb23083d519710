// What a run looks at beside its training: the validation loss, and when its operations ran.
#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <fstream>

#include "apps/say.h"
#include "apps/train/train_run.h"
#include "apps/train/wrap.h"
#include "engine/cost/trace.h"
#include "kernels/system/error.h"

namespace aliquot {

double TrainRun::evaluate() {
  const InPhase evaluating(*this, RunPhase::kEvaluating);
  std::vector<double> losses;
  for (int64_t batch = 0; batch < options_.eval_batches; ++batch) {
    evaluated_->load(0, batch);
    model_->set_batch({evaluated_->tokens(), evaluated_->targets()});
    run_evaluation(*engine_, *model_);
    losses.push_back(model_->loss_sum());
  }
  sum_over_ranks(losses, {"validation loss", engine_->step_count()});
  const int64_t tokens = options_.eval_batches * world_.rank_count() * options_.micro_batch * *options_.sequence;
  return sum_of_micro_batches(losses) / static_cast<double>(tokens);
}

namespace {

struct RankTimeline {
  double began;
  int64_t operation_count;
};

std::string packed(const Timeline& timeline, double began) {
  const RankTimeline head = {began, static_cast<int64_t>(timeline.operations.size())};
  std::string bytes(sizeof head + timeline.operations.size() * sizeof(TimeSpan), '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  std::memcpy(bytes.data() + sizeof head, timeline.operations.data(), timeline.operations.size() * sizeof(TimeSpan));
  return bytes;
}

/// Seconds count from the first rank's beginning; ranks on other machines, whose clocks say something else, each from their
/// own.
std::vector<Timeline> unpacked(const std::vector<std::string>& ranks, const Topology& topology) {
  std::vector<Timeline> timelines;
  double first = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    RankTimeline head;
    std::memcpy(&head, ranks[r].data(), sizeof head);
    if (r == 0) first = head.began;
    Timeline timeline;
    timeline.operations.resize(static_cast<std::size_t>(head.operation_count));
    std::memcpy(timeline.operations.data(), ranks[r].data() + sizeof head, ranks[r].size() - sizeof head);
    const double shift = topology.node_of_rank[r] == topology.node_of_rank[0] ? head.began - first : 0;
    for (TimeSpan& span : timeline.operations) span = {span.start_seconds + shift, span.end_seconds + shift};
    timelines.push_back(std::move(timeline));
  }
  return timelines;
}

}  // namespace

void TrainRun::write_trace_file() {
  double began = 0;
  const Timeline own = engine_->timeline(&began);
  const auto all = world_.communicator().gather_objects(packed(own, began));
  if (!leads()) return;
  if (own.operations.empty()) {
    warn("--trace {}: a run of fewer than three steps leaves nothing to draw.", options_.trace);
    return;
  }
  std::ofstream file(options_.trace);
  write_trace(file, engine_->plan(), unpacked(all, world_.topology()));
  if (!file.flush()) throw FaultError(fmt::format("--trace {}: it could not be written.", options_.trace));
}

}  // namespace aliquot
