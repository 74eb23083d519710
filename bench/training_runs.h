#pragma once
// Starts training runs of `aliquot train` and of PyTorch as separate processes, and reads their results.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace aliquot {

struct TrainingRun {
  std::vector<double> step_seconds;  // time of each step after the warm-up steps
  int64_t share_bytes = 0;           // largest proportional set size (Pss) of a rank
  /// Seconds of one step by part (products, attention, optimizer, gather, waiting, ...). Empty for PyTorch.
  std::map<std::string, double> part_seconds;
};

struct TrainingSetting {
  int zero_stage = 3;
  std::string precision;
  int ranks = 2;
  std::string words = {};  // further options of aliquot train
};

/// Runs `aliquot train` with GPT-2 124M on ranks of one thread. The ranks are MPI processes, or threads in a build
/// without MPI. Throws std::runtime_error if the run fails.
TrainingRun run_aliquot(const TrainingSetting& setting, int step_count);

/// Runs bench/training_torch.py with the interpreter ALIQUOT_BENCH_PYTHON. `mode` is fsdp2 or ddp. Throws
/// std::runtime_error if the run fails.
TrainingRun run_torch(const std::string& mode, const std::string& precision, int step_count);
/// Whether the environment variable ALIQUOT_BENCH_PYTHON is set.
bool has_torch();

}  // namespace aliquot
