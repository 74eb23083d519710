#pragma once
// The options of `aliquot train`.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/options/arguments.h"
#include "apps/options/mesh_option.h"
#include "apps/options/shape_options.h"
#include "engine/options/common_options.h"
#include "kernels/gemm/operand_rounding.h"
#include "optim/schedule.h"

namespace aliquot {

/// The values of the options, initialized to their defaults. An empty optional or string is not set, or is derived
/// later from the model, the world and the device.
struct TrainOptions : ShapeOptions, CommonOptions {
  TrainOptions();

  std::optional<int64_t> ranks;
  MeshOption mesh;
  std::string pipeline_order_from, machine = "host", profile;

  std::string init;
  OperandRounding products = OperandRounding::kNone;

  std::string data;
  bool shuffle = true;
  int64_t data_seed = 1;
  std::string eval_data;
  int64_t eval_every = 0, eval_batches = 1;
  std::string tokenizer, sample_prompt;
  int64_t sample_every = 0, sample_tokens = 50;
  double sample_temperature = 0.8;

  int64_t steps = 100;
  int64_t micro_batch = 4;  // sequences per micro-batch of a rank; 0: derived from the global batch of a DeepSpeed file
  std::optional<int64_t> sequence, global_batch, stop_after;

  double min_lr = 0;
  bool decay_all = false;
  RateShape schedule = RateShape::kCosine;
  int64_t warmup = 0;
  WarmupShape warmup_shape = WarmupShape::kLinear;
  double warmup_from = 0;
  RateScaling scale_lr = RateScaling::kNone;
  std::optional<int64_t> base_batch;

  std::string checkpoint_dir;
  int64_t checkpoint_every = 0, keep = 3;
  std::string save = "auto", resume = "none";
  bool allow_missing = false;

  std::string metrics, trace;
  bool quiet = false;
  std::string progress = "auto";
  int64_t log_every = 0;  // steps between lines of progress; 0: auto
  int64_t metrics_every = 1;
  int64_t digest_every = 0, check_every = 0;
  std::optional<double> skip_spikes;
  int64_t stragglers_every = 10;
  double straggler_threshold = 1.5;
  bool dry_run = false;
  std::string deepspeed, config;

  // Not options of `aliquot train`.
  bool frozen = false;           // no parameter is trained, so there are no gradients and no optimizer state
  int64_t decode_positions = 0;  // see ModelOptions
  std::string adapters;  // the checkpoint of adapters that load_initial_weights() loads after --init; may be empty
};

inline constexpr std::array kShuffleWords{EnumName{"on", true}, EnumName{"off", false}};
inline constexpr std::array kScheduleWords{EnumName{"constant", RateShape::kConstant},
                                           EnumName{"linear", RateShape::kLinear},
                                           EnumName{"cosine", RateShape::kCosine}, EnumName{"wsd", RateShape::kWsd},
                                           EnumName{"inverse-sqrt", RateShape::kInverseSqrt}};
inline constexpr std::array kWarmupWords{EnumName{"linear", WarmupShape::kLinear}, EnumName{"log", WarmupShape::kLog}};
inline constexpr std::array kScalingWords{EnumName{"none", RateScaling::kNone},
                                          EnumName{"linear", RateScaling::kLinear},
                                          EnumName{"sqrt", RateScaling::kSqrt}};

/// The table of the options of `aliquot train`. `options` must outlive it and must not move.
OptionTable train_option_table(TrainOptions& options);

/// Throws UsageError if the optimizer cannot update the parameters that --tensor divides.
void check_tensor_options(const CommonOptions& options);

/// Returns a warning for each option in `given` that has no effect with the other options, except defaults in a
/// configuration file.
std::vector<std::string> ineffective_options(const TrainOptions& options, const std::vector<GivenOption>& given);

/// The value of one option, as a configuration file accepts it.
std::string option_text(TrainOptions options, std::string_view name);

/// Returns the number of ranks that read different data: one of each tensor group of a pipeline stage. Throws
/// UsageError if the ranks cannot be divided equally among the pipeline stages.
int data_rank_count(const EngineOptions& options, int rank_count);

/// Returns the number of micro-batches per step with which a step has `global_batch` sequences. Throws UsageError if
/// --accumulate contradicts it, or if no number of micro-batches gives this global batch.
int accumulate_for(int64_t global_batch, const EngineOptions& options, int rank_count, int64_t micro_batch);

/// Sets the options whose values depend on other options, on the number of ranks or on the device: shape, sequence,
/// accumulate (from --global-batch), precision, and the options that depend on the precision. Throws UsageError, naming
/// the flags, for invalid combinations.
void resolve(TrainOptions& options, int rank_count, bool on_gpu);

}  // namespace aliquot
