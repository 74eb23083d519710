#pragma once
// What a schedule would take, from rates: a timeline without a single byte moved.

#include <vector>

#include "engine/plan/timeline.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// What moves bytes between ranks.
struct LinkCost {
  double bytes_per_second = 1e10;  // into one rank inside a node; into one node between nodes
  double latency_seconds = 1e-5;   // of one collective
};

/// The model's own code in one use, in one micro-batch.
struct UseCost {
  double forward_seconds = 0, backward_seconds = 0;
};

/// Rates of a machine, measured or assumed. Collectives at once share the link between nodes, and nothing else.
struct CostModel {
  LinkCost inside_node, between_nodes;
  /// Cores of a rank for each of its threads; 0: what moves bytes has processors of its own (GPUs). With 1 or less, who
  /// computes and who moves bytes take turns: copies and sums take twice as long meanwhile, and computing too; messages take
  /// what they take `beside_compute`, and that share of computing.
  double cores_per_thread = 0;
  LinkCost beside_compute;
  double beside_compute_share = 0;
  double copy_bytes_per_second = 1e10;  // sums and copies in a rank's own memory
  double update_seconds_per_element = 3e-9;
  double host_bytes_per_second = 1e10;    // between a slot and host memory, for what is offloaded there
  double disk_bytes_per_second = 2e9;     // and a disk
  double flops_per_second = 1e11;         // for uses not given: 2 operations a parameter and sample forward, 4 backward
  double matrix_flops_per_second = 5e10;  // of matrices being made orthogonal, whose sums have one order everywhere
  double samples_per_micro_batch = 1;     // of a rank; tokens, for a model of text
  std::vector<UseCost> uses;              // by use; empty: all from flops
  bool compute_issues = true;  // compute runs on the thread that issues (hosts); false: it is a stream like the others

  /// Round figures of a host whose ranks share memory, over 10 Gbit/s Ethernet; of GPUs with a fast link inside a node
  /// and 400 Gbit/s between nodes.
  static CostModel typical_host();
  static CostModel typical_gpu();
};

/// Every operation starts when its lane is free and its waits are over; all ranks run alike. Throws UsageError when the
/// uses priced are not the plan's.
Timeline simulate(const Plan& plan, const CostModel& cost);

}  // namespace aliquot
#pragma GCC visibility pop
