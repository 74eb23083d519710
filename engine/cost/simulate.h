#pragma once
// Simulates the timeline of a schedule on a machine with given rates.

#include <optional>
#include <vector>

#include "engine/plan/timeline.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// A link between ranks.
struct LinkCost {
  double bytes_per_second = 1e10;  // into one rank (inside a node), or into one node (between nodes)
  double latency_seconds = 1e-5;   // per collective
};

/// The duration of the model's code in one use, for one micro-batch.
struct UseCost {
  double forward_seconds = 0, backward_seconds = 0;
  /// The part of backward_seconds in which a split backward computes gradients of activations; empty: half of it.
  std::optional<double> backward_input_seconds = {};
};

/// Rates of a machine, measured or assumed. Simultaneous collectives share only the link between nodes.
struct CostModel {
  LinkCost inside_node, between_nodes;
  /// Cores per thread of a rank. 0: data movement does not use the cores (GPUs). At 1 or less, compute and data
  /// movement share cores. While both run, copies, sums and compute take twice as long. Messages between nodes then
  /// have the rates `beside_compute`, and slow down compute by the fraction `beside_compute_share`. At less than 1,
  /// ranks share cores, and compute at times that do not depend on one another.
  double cores_per_thread = 0;
  LinkCost beside_compute;
  double beside_compute_share = 0;
  double copy_bytes_per_second = 1e10;  // sums and copies in a rank's own memory
  double update_seconds_per_element = 3e-9;
  double host_bytes_per_second = 1e10;  // offload copies to and from host memory
  double disk_bytes_per_second = 2e9;   // offload copies to and from disk
  /// Used if `uses` is empty. A parameter takes 2 flops per sample in forward and 4 in backward.
  double flops_per_second = 1e11;
  double matrix_flops_per_second = 5e10;  // rate of orthogonalization, low because it adds in a fixed order
  double samples_per_micro_batch = 1;     // per rank; for language models, the number of tokens
  std::vector<UseCost> uses;              // times of each use; empty: estimated from flops_per_second
  bool compute_issues = true;             // the issuing thread runs compute (hosts); false: compute has its own stream

  /// Rounded rates of a host whose ranks share memory, with 10 Gbit/s Ethernet between nodes.
  static CostModel typical_host();
  /// Rounded rates of GPUs with a fast link inside a node, and 400 Gbit/s between nodes.
  static CostModel typical_gpu();
};

/// Simulates a step. An operation starts when its lane is free and its waits are satisfied. Assumes that all ranks
/// behave identically. Throws UsageError if the number of CostModel::uses differs from the number of uses of the model.
Timeline simulate(const Plan& plan, const CostModel& cost);
/// Simulates a step of all pipeline stages together, and returns the timeline of each. Sends wait for their receives.
std::vector<Timeline> simulate(const std::vector<Plan>& stages, const CostModel& cost);

}  // namespace aliquot
#pragma GCC visibility pop
