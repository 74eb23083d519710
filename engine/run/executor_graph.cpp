// Passes that run as a graph.
#include <cassert>

#include "engine/run/executor.h"

namespace aliquot {

void Executor::begin_capture() {
  assert(at_start_of_step());
  capture_ = std::make_unique<WorkCapture>(stream(Lane::kCompute));
  make_lanes_wait();
}

std::unique_ptr<WorkGraph> Executor::end_capture() {
  assert(at_end_of_passes());
  make_compute_wait();
  auto graph = capture_->end();
  capture_.reset();
  return graph;
}

void Executor::skip_passes() {
  assert(at_start_of_step());
  for (; !at_end_of_passes(); ++cursor_) {
    for (const BufferId buffer : begins_[cursor_]) memory_.acquire(buffer);
    for (const BufferId buffer : ends_[cursor_]) memory_.release(buffer);
  }
}

void Executor::launch(WorkGraph& graph) {
  in_graph_ = true;  // note_position() then names the graph
  report_position_on_failure([&] {
    Stream& compute = stream(Lane::kCompute);
    const Label label{"passes", reported_step_};
    make_compute_wait();
    const std::vector<Communicator*> communicators = groups_.communicators();
    for (Communicator* ranks : communicators) ranks->begin_graph(compute, label);
    graph.launch(compute);
    for (Communicator* ranks : communicators) ranks->end_graph(compute);
    make_lanes_wait();
  });
  in_graph_ = false;
  graph_step_ = step_;
}

/// The compute lane waits for all other lanes.
void Executor::make_compute_wait() {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane] == nullptr || static_cast<Lane>(lane) == Lane::kCompute) continue;
    lanes_[lane]->record(*lane_points_[lane]);
    stream(Lane::kCompute).wait(*lane_points_[lane]);
  }
}

/// All other lanes wait for the compute lane.
void Executor::make_lanes_wait() {
  stream(Lane::kCompute).record(*compute_point_);
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane] != nullptr && static_cast<Lane>(lane) != Lane::kCompute) lanes_[lane]->wait(*compute_point_);
  }
}

}  // namespace aliquot
