#pragma once
// Training runs of other programs, as the bench sees them: started, waited for, and read.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace aliquot {

/// One run: seconds of each step after those that warm up, memory of the rank with the most (Pss), and where one step went.
struct TrainingRun {
  std::vector<double> step_seconds;
  int64_t share_bytes = 0;
  std::map<std::string, double>
      part_seconds;  // products, attention, ..., optimizer, gather, reduce, waiting; ours alone
};

/// `aliquot train`, GPT-2 124M on 2 ranks of one thread, as processes where there is MPI. Throws std::runtime_error.
TrainingRun run_aliquot(int zero_stage, const std::string& precision, int step_count);

/// bench/training_torch.py by the python that the environment's ALIQUOT_BENCH_PYTHON names. `mode`: fsdp2 or ddp.
TrainingRun run_torch(const std::string& mode, const std::string& precision, int step_count);
/// Whether that is asked for.
bool has_torch();

}  // namespace aliquot
