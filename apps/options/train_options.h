#pragma once
// Everything `aliquot train` can be told.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/offload_options.h"
#include "apps/options/option_table.h"
#include "apps/options/shape_options.h"
#include "optim/loss_scaler.h"

namespace aliquot {

/// Plain values under the manual's names; the initial ones are the defaults. Choices are the words of the flags, checked.
/// Empty optionals and strings are what is resolved later (by model, world and device) or was not asked for.
struct TrainOptions : ShapeOptions, OffloadOptions {
  std::string zero_stage = "3";
  std::optional<int64_t> ranks;
  std::string device = "auto", world = "auto";
  std::optional<int64_t> threads;
  int64_t replicas = 1;

  std::string init;

  std::string data;
  std::string shuffle = "on";
  int64_t data_seed = 1;
  std::string eval_data;
  int64_t eval_every = 0, eval_batches = 1;

  int64_t steps = 100, accumulate = 1;
  int64_t micro_batch = 4;  // 0: what the global batch leaves a rank, as a DeepSpeed file may mean it
  std::optional<int64_t> sequence, global_batch, stop_after;

  std::string optimizer = "adamw";
  double lr = 3e-4, min_lr = 0, eps = 1e-8, weight_decay = 0.1, muon_lr = 0.02;
  std::optional<double> momentum;  // unset: 0.9; muon 0.95
  double beta_1 = 0.9, beta_2 = 0.95;
  std::optional<bool> nesterov;  // unset: muon does
  bool decay_all = false;
  std::string schedule = "cosine";
  int64_t warmup = 0;
  std::string warmup_shape = "linear";
  double warmup_from = 0;
  std::string scale_lr = "none";
  std::optional<int64_t> base_batch;
  double clip = 1.0;

  std::string precision, gradients = "fp32", reduce_precision, master = "split", state = "fp32";
  std::string accumulate_into;
  LossScaling loss_scaling;  // of fp16; from a DeepSpeed file alone

  int64_t prefetch = 1, keep_gathered = 0;
  std::string gather = "auto";
  std::optional<int64_t> memory_budget;
  std::string quantize = "none", recompute = "auto";
  bool update_in_backward = false, reproducible = false;

  std::string checkpoint_dir;
  int64_t checkpoint_every = 0, keep = 3;
  std::string save = "auto", resume = "none";
  bool allow_missing = false;

  std::string metrics, trace;
  bool quiet = false;
  std::string progress = "auto";
  double timeout_seconds = 600;
  int64_t max_skipped = 10, digest_every = 0, check_every = 0, seed = 1;
  std::optional<double> skip_spikes;
  int64_t stragglers_every = 10;
  double straggler_threshold = 1.5;
  bool dry_run = false;
  std::string deepspeed, config;

  int stage() const { return zero_stage.front() - '0'; }
};

inline constexpr int64_t kMostMicroBatches = 1 << 20;  // a step

/// The table of `aliquot train`, bound to `options`, which must outlive it and stay where it is.
OptionTable train_option_table(TrainOptions& options);

/// Fills what follows from the rest and from the world: shape, sequence, accumulate from --global-batch, precision and
/// what depends on it. Throws UsageError, naming the flags, for combinations that make no sense.
void resolve(TrainOptions& options, int rank_count, bool on_gpu);

}  // namespace aliquot
