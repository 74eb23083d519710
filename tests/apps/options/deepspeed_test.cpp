// Tests how aliquot train reads the keys of a DeepSpeed configuration.
#include "apps/options/deepspeed.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "apps/options/deepspeed_keys.h"
#include "apps/train/train_settings.h"
#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

class Deepspeed : public testing::Test {
 protected:
  ~Deepspeed() override {
    for (const std::string& path : {path_, ini_}) std::filesystem::remove(path);
  }
  /// Returns the options of `aliquot train --deepspeed FILE WORDS...`, where FILE contains `json`.
  TrainOptions options(const std::string& json, std::vector<std::string> words = {}) {
    std::ofstream(path_) << json;
    words.insert(words.begin(), {"--deepspeed", path_});
    TrainOptions o;
    remarks_ = parse_train_arguments(o, words);
    return o;
  }
  std::string value(const std::string& json, const std::string& option) {
    TrainOptions o = options(json);
    return text_of(train_option_table(o).find(option)->get());
  }
  std::string error_message(const std::string& json) {
    try {
      options(json);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "none";
  }
  std::string remark() const { return remarks_.empty() ? "" : remarks_.front(); }

  std::string path_ = testing::TempDir() + "aliquot_deepspeed_" + std::to_string(getpid()) + ".json";
  std::string ini_ = path_ + ".ini";
  std::vector<std::string> remarks_;
};

std::string zero(const std::string& inside) { return "{\"zero_optimization\": {" + inside + "}}"; }
std::string adam(const std::string& params) { return R"({"optimizer": {"type": "Adam", "params": {)" + params + "}}}"; }
std::string pipeline(const std::string& inside) { return "{\"pipeline\": {" + inside + "}}"; }
std::string scheduler(const std::string& type, const std::string& params) {
  return R"({"optimizer": {"type": "Adam", "params": {"lr": 0.5}}, "scheduler": {"type": ")" + type +
         R"(", "params": {)" + params + "}}}";
}

TEST_F(Deepspeed, OmittedKeysHaveDeepspeedsDefaults) {
  const TrainOptions o = options("{}"), ours;
  EXPECT_EQ(o.engine.zero_stage, 0);
  EXPECT_EQ(o.engine.clip, 0);
  EXPECT_EQ(o.schedule, RateShape::kConstant);
  EXPECT_EQ(o.warmup, 0);
  EXPECT_EQ(o.precision, DType::kFloat32);
  EXPECT_EQ(o.optimizer.kind, ours.optimizer.kind);  // DeepSpeed has no default optimizer
  EXPECT_EQ(o.optimizer.lr, ours.optimizer.lr);
  EXPECT_EQ(o.micro_batch, ours.micro_batch);
  EXPECT_TRUE(remarks_.empty());
}

struct MappedKeyCase {
  std::string json, option, value;
};

// The configuration `json` must set `option` to `value`.
const std::vector<MappedKeyCase> kMappedKeyCases = {
    {R"({"train_batch_size": 32})", "global-batch", "32"},
    {R"({"train_batch_size": 3.2e1})", "global-batch", "32"},
    {R"({"train_batch_size": "1_024"})", "global-batch", "1024"},
    {R"({"train_micro_batch_size_per_gpu": 3})", "micro-batch", "3"},
    {R"({"gradient_accumulation_steps": 5})", "accumulate", "5"},
    {R"({"gradient_clipping": 0.5})", "clip", "0.5"},
    {R"({"seed": 7})", "seed", "7"},
    {zero(R"("stage": 2)"), "zero-stage", "2"},
    {R"({"zero_optimization": true})", "zero-stage", "1"},
    {R"({"zero_optimization": null})", "zero-stage", "0"},
    {R"({"bf16": {"enabled": true}})", "precision", "bf16"},
    {R"({"bfloat16": {"enabled": true}})", "precision", "bf16"},
    {R"({"bf16": {"enabled": false}})", "precision", "fp32"},
    {R"({"fp16": {"enabled": true}})", "precision", "fp16"},
    {R"({"communication_data_type": "bf16"})", "reduce-precision", "bf16"},
    {R"({"data_types": {"grad_accum_dtype": "bf16"}})", "gradients", "bf16"},
    {adam(""), "optimizer", "adamw"},  // DeepSpeed's Adam decouples weight decay by default
    {adam(R"("adam_w_mode": false)"), "optimizer", "adam"},
    {adam(""), "lr", "0.001"},
    {adam(R"("lr": 6e-4)"), "lr", "0.0006"},
    {adam(""), "betas", "0.9,0.999"},
    {adam(R"("betas": [0.8, 0.95])"), "betas", "0.8,0.95"},
    {adam(""), "eps", "1e-08"},
    {adam(R"("eps": 1e-6)"), "eps", "1e-06"},
    {adam(""), "weight-decay", "0.0"},
    {adam(R"("torch_adam": true)"), "weight-decay", "0.01"},
    {adam(R"("weight_decay": 0.3)"), "weight-decay", "0.3"},
    {R"({"optimizer": {"type": "AdamW"}})", "optimizer", "adamw"},
    {R"({"optimizer": {"type": "Lion"}})", "optimizer", "lion"},
    {R"({"optimizer": {"type": "Lion"}})", "betas", "0.9,0.99"},
    {R"({"optimizer": {"type": "SGD"}})", "momentum", "0.0"},
    {R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.8, "nesterov": true}}})", "momentum", "0.8"},
    {R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.8, "nesterov": true}}})", "nesterov", "true"},
    {R"({"optimizer": {"type": "Muon"}})", "optimizer", "muon"},
    {R"({"optimizer": {"type": "Muon"}})", "muon-lr", "0.02"},
    {R"({"optimizer": {"type": "Muon"}})", "lr", "0.0003"},
    {R"({"optimizer": {"type": "Muon"}})", "betas", "0.9,0.95"},
    {R"({"optimizer": {"type": "Muon"}})", "eps", "1e-10"},
    {R"({"optimizer": {"type": "Muon"}})", "weight-decay", "0.0"},
    {R"({"optimizer": {"type": "Muon"}})", "momentum", "0.95"},
    {R"({"optimizer": {"type": "Muon"}, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.25}}})",
     "muon-lr", "0.25"},
    {R"({"optimizer": {"type": "Muon", "params": {"lr": 0.5}}})", "muon-lr", "0.5"},
    {R"({"optimizer": {"type": "Muon", "params": {"lr": 0.5}}})", "lr", "0.5"},
    {R"({"optimizer": {"type": "Muon", "params": {"lr": 0.5, "muon_lr": 0.25}}})", "muon-lr", "0.25"},
    {R"({"optimizer": {"type": "Muon", "params": {"lr": 0.5, "adam_lr": 0.25}}})", "lr", "0.25"},
    {R"({"optimizer": {"type": "Muon", "params": {"momentum": 0.8}}})", "momentum", "0.8"},
    {scheduler("WarmupLR", ""), "schedule", "constant"},
    {scheduler("WarmupLR", ""), "warmup", "1000"},
    {scheduler("WarmupLR", ""), "warmup-shape", "log"},
    {scheduler("WarmupLR", R"("warmup_type": "linear")"), "warmup-shape", "linear"},
    {scheduler("WarmupLR", ""), "lr", "0.001"},
    {scheduler("WarmupLR", R"("warmup_max_lr": 0.2, "warmup_min_lr": 0.1, "warmup_num_steps": 9)"), "lr", "0.2"},
    {scheduler("WarmupLR", R"("warmup_max_lr": 0.2, "warmup_min_lr": 0.1)"), "warmup-from", "0.1"},
    {scheduler("WarmupLR", R"("warmup_num_steps": 9)"), "warmup", "9"},
    {scheduler("WarmupDecayLR", R"("total_num_steps": 5e3)"), "steps", "5000"},
    {scheduler("WarmupDecayLR", R"("total_num_steps": 50)"), "schedule", "linear"},
    {scheduler("WarmupDecayLR", R"("total_num_steps": 50, "warmup_min_lr": 1e-4)"), "min-lr", "0.0001"},
    {scheduler("WarmupCosineLR", R"("total_num_steps": 50)"), "schedule", "cosine"},
    {scheduler("WarmupCosineLR", R"("total_num_steps": 50)"), "lr", "0.5"},
    {scheduler("WarmupCosineLR", R"("total_num_steps": 50, "cos_min_ratio": 0.5)"), "min-lr", "0.25"},
    {scheduler("WarmupCosineLR", R"("total_num_steps": 50, "warmup_min_ratio": 0.1)"), "warmup-from", "0.05"},
    {zero(R"("offload_optimizer": {"device": "cpu"})"), "offload", "host"},
    {zero(R"("offload_optimizer": {"device": "nvme", "nvme_path": "/scratch"})"), "offload", "disk:/scratch"},
    {zero(R"("offload_optimizer": {"device": "none"})"), "offload", "none"},
    {zero(R"("offload_optimizer": null)"), "offload", "none"},
    {zero(R"("cpu_offload": true)"), "offload", "host"},
    {zero(R"("cpu_offload": false)"), "offload", "none"},
    {zero(R"("offload_param": {"device": "cpu"})"), "offload-parameters", "host"},
    {zero(R"("cpu_offload_params": true)"), "offload-parameters", "host"},
    {zero(R"("zero_quantized_weights": true)"), "quantize", "weights"},
    {zero(R"("zero_quantized_gradients": true)"), "quantize", "gradients"},
    {zero(R"("zero_quantized_weights": true, "zero_quantized_gradients": true)"), "quantize", "both"},
    {zero(R"("stage3_prefetch_bucket_size": 0)"), "prefetch", "0"},
    {pipeline(R"("stages": 4)"), "pipeline", "4"},
    {pipeline(R"("stages": "4")"), "pipeline", "4"},
    {pipeline(R"("stages": "auto")"), "pipeline", "1"},
    {pipeline(R"("num_stages": 4)"), "pipeline", "4"},
    {pipeline(R"("stages": 2, "num_stages": 2)"), "pipeline", "2"},
    {R"({"pipeline": null})", "pipeline", "1"},
    {pipeline(R"("activation_checkpoint_interval": 1)"), "recompute", "block"},
    {pipeline(R"("activation_checkpoint_interval": 4)"), "recompute", "block"},
};

TEST_F(Deepspeed, SupportedKeysSetOptions) {
  for (const MappedKeyCase& one : kMappedKeyCases)
    EXPECT_EQ(value(one.json, one.option), one.value) << one.json << " " << one.option;
  const TrainOptions scaled = options(R"({"fp16": {"enabled": true, "loss_scale": 128, "initial_scale_power": 12,
      "loss_scale_window": 500, "hysteresis": 3, "consecutive_hysteresis": true, "min_loss_scale": 2}})");
  EXPECT_EQ(scaled.engine.loss_scaling.loss_scale, 128);
  EXPECT_EQ(scaled.engine.loss_scaling.initial_scale_power, 12);
  EXPECT_EQ(scaled.engine.loss_scaling.loss_scale_window, 500);
  EXPECT_EQ(scaled.engine.loss_scaling.hysteresis, 3);
  EXPECT_TRUE(scaled.engine.loss_scaling.consecutive_hysteresis);
  EXPECT_EQ(scaled.engine.loss_scaling.min_loss_scale, 2);
}

TEST_F(Deepspeed, AutoMeansAliquotsDefault) {
  TrainOptions ours;
  const Json defaults = option_values(train_option_table(ours));
  TrainOptions o = options(R"({
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "loss_scale": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "auto", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
    "zero_optimization": {"stage": "auto", "offload_optimizer": {"device": "auto"}, "zero_quantized_weights": "auto"},
    "seed": "auto"})");
  Json taken = option_values(train_option_table(o));
  taken["deepspeed"] = nullptr;
  EXPECT_EQ(taken, defaults);
  // If warmup_max_lr is "auto", warm-up ends at the optimizer's learning rate.
  const TrainOptions warm = options(scheduler("WarmupLR", R"("warmup_max_lr": "auto", "warmup_num_steps": "auto")"));
  EXPECT_EQ(warm.optimizer.lr, 0.5);
  EXPECT_EQ(warm.warmup, 0);
}

TEST_F(Deepspeed, IgnoredKeysAreListedInOneRemark) {
  for (const std::string key :
       {"contiguous_gradients", "reduce_scatter", "allgather_partitions", "reduce_bucket_size", "allgather_bucket_size",
        "overlap_comm", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
        "stage3_max_live_parameters", "stage3_max_reuse_distance", "sub_group_size", "round_robin_gradients",
        "ignore_unused_parameters", "stage3_gather_16bit_weights_on_model_save",
        "gather_16bit_weights_on_model_save"}) {
    options(zero("\"" + key + "\": 5e8"));
    EXPECT_NE(remark().find(": these keys have no effect in Aliquot: zero_optimization." + key), std::string::npos)
        << key;
  }
  for (const std::string key : {"pin_memory", "buffer_count", "buffer_size"}) {
    options(zero("\"offload_param\": {\"" + key + "\": 5}, \"offload_optimizer\": {\"" + key + "\": 4}"));
    EXPECT_NE(remark().find("zero_optimization.offload_param." + key), std::string::npos) << key;
    EXPECT_NE(remark().find("zero_optimization.offload_optimizer." + key), std::string::npos) << key;
  }
  for (const std::string key :
       {"steps_per_print", "wall_clock_breakdown", "prescale_gradients", "gradient_predivide_factor",
        "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"}) {
    options("{\"" + key + "\": 1}");
    EXPECT_TRUE(remark().ends_with("no effect in Aliquot: " + key)) << remark();
  }
  for (
      const std::string block :
      {R"("aio": {"block_size": 1048576, "queue_depth": 8, "thread_count": 1, "single_submit": false, "overlap_events": true})",
       R"("flops_profiler": {"enabled": false})", R"("wandb": {"enabled": true, "team": "x"})", R"("tensorboard": {})",
       R"("comms_logger": {"enabled": true})",
       R"("activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": true, "number_checkpoints": 4})",
       R"("elasticity": {"enabled": false, "max_train_batch_size": 2000})"}) {
    options("{" + block + "}");
    const std::string name = block.substr(1, block.find('"', 1) - 1);
    EXPECT_NE(remark().find("no effect in Aliquot: " + name), std::string::npos) << remark();
  }
  for (const std::string key :
       {R"("seed_layers": true)", R"("pipe_partitioned": false)", R"("grad_partitioned": true)",
        R"("use_reentrant": false)", R"("partition": "uniform")", R"("partition_method": "type:Block")"}) {
    options(pipeline(key));
    EXPECT_TRUE(remark().ends_with(": pipeline." + key.substr(1, key.find('"', 1) - 1))) << key << remark();
  }
  for (const std::string method : {"best", "parameters", "Parameters"}) {
    options(pipeline("\"partition\": \"" + method + "\""));
    EXPECT_EQ(remark(), "") << "the default cut is as " << method;
  }
  options(R"({"fp16": {"enabled": false, "opt_level": "O2"}})");
  EXPECT_TRUE(remark().ends_with(": fp16.opt_level")) << remark();
}

TEST_F(Deepspeed, UnsupportedKeysThatAffectTrainingAreRejected) {
  const std::vector<std::pair<std::string, std::string>> all = {
      {zero(R"("zero_hpz_partition_size": 8)"), "zero_optimization.zero_hpz_partition_size: 8 is not supported"},
      {zero(R"("mics_shard_size": 8)"), "mics_shard_size"},
      {zero(R"("offload_optimizer": {"device": "cpu", "ratio": 0.3})"), "offload_optimizer.ratio: 0.3"},
      {zero(R"("offload_optimizer": {"device": "nvme"})"), "nvme_path: the key is missing"},
      {zero(R"("offload_optimizer": {"device": "moon"})"), "expected none, cpu or nvme"},
      {zero(R"("stage": 4)"), "zero_optimization.stage: invalid value '4': expected one of 0, 1, 2, 3."},
      {adam(R"("amsgrad": true)"), "optimizer.params.amsgrad"},
      {adam(R"("bias_correction": false)"), "optimizer.params.bias_correction"},
      {adam(R"("betas": [0.9])"), "expected two numbers"},
      {adam(R"("lr": "fast")"), "optimizer.params.lr: invalid value 'fast'"},
      {R"({"optimizer": {"type": "Lamb"}})", "'Lamb' is not supported: expected Adam, AdamW, Lion, SGD or Muon."},
      {R"({"optimizer": {"type": "OneBitAdam"}})", "'OneBitAdam' is not supported"},
      {R"({"optimizer": {"params": {"lr": 1}}})", "optimizer.type: the key is missing"},
      {R"({"scheduler": {"type": "OneCycle"}})", "'OneCycle' is not supported"},
      {R"({"scheduler": {"params": {"warmup_num_steps": 3}}})", "scheduler.type: the key is missing"},
      {R"({"scheduler": {"type": "WarmupDecayLR"}})", "total_num_steps: the key is missing"},
      {R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})", "enable only one of them"},
      {R"({"fp16": {"hysteresis": -1}})", "fp16.hysteresis: invalid value '-1'"},
      {R"({"fp16": {"enabled": 1}})", "fp16.enabled: invalid value 1: expected true or false."},
      {R"({"data_types": {"grad_accum_dtype": "fp16"}})", "expected fp32 or bf16"},
      {R"({"sparse_gradients": true})", "sparse_gradients: true is not supported"},
      {R"({"amp": {"enabled": true}})", "amp.enabled"},
      {R"({"elasticity": {"enabled": true}})", "elasticity.enabled"},
      {R"({"train_batch_size": 0})", "train_batch_size: invalid value '0'"},
      {R"({"gradient_clipping": -1})", "gradient_clipping: invalid value '-1'"},
      {pipeline(R"("stages": 0)"), "pipeline.stages: invalid value '0'"},
      {pipeline(R"("stages": true)"), "pipeline.stages: invalid value 'true'"},
      {pipeline(R"("stages": 2, "num_stages": 4)"), "pipeline.num_stages: 4 contradicts pipeline.stages 2"},
      {pipeline(R"("partition": "profile")"),
       "'profile' is not supported: expected best, parameters, uniform or type:"},
      {pipeline(R"("partition_method": 3)"), "pipeline.partition_method: invalid value 3: expected a string."},
      {pipeline(R"("activation_checkpoint_interval": -1)"), "activation_checkpoint_interval: invalid value '-1'"},
      {pipeline(R"("stage": 2)"), "pipeline.stage: unknown key. Did you mean stages?"},
      {R"({"pipeline": 2})", "pipeline: invalid value 2: expected an object, {...}"},
  };
  for (const auto& [json, text] : all) {
    const std::string message = error_message(json);
    EXPECT_NE(message.find(text), std::string::npos) << json << "\n" << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_TRUE(message.starts_with("--deepspeed " + path_ + ":")) << message;
  }
}

/// warmup_min_ratio and cos_min_ratio are factors of the learning rate, even if --lr overrides it. A warm-up may have
/// more steps than the run.
TEST_F(Deepspeed, RatesMayBeRatiosAndWarmUpMayExceedSteps) {
  const std::string by_share =
      scheduler("WarmupCosineLR",
                R"("total_num_steps": 50, "warmup_num_steps": 9, "warmup_min_ratio": 0.25, "cos_min_ratio": 0.5)");
  EXPECT_DOUBLE_EQ(options(by_share).min_lr, 0.25);
  EXPECT_DOUBLE_EQ(options(by_share).warmup_from, 0.125);
  EXPECT_DOUBLE_EQ(options(by_share, {"--lr", "1e-2"}).min_lr, 0.005);
  EXPECT_DOUBLE_EQ(options(by_share, {"--lr", "1e-2", "--min-lr", "1e-3"}).min_lr, 0.001);
  for (const char* share : {"-3", "1.5"}) {
    const std::string text = scheduler(
        "WarmupCosineLR", R"("total_num_steps": 50, "warmup_num_steps": 9, "cos_min_ratio": )" + std::string(share));
    EXPECT_NE(error_message(text).find("scheduler.params.cos_min_ratio: "), std::string::npos) << error_message(text);
  }
  TrainOptions o = options(scheduler("WarmupLR", ""));
  o.global_batch = 4;
  EXPECT_EQ(o.warmup, 1000);
  EXPECT_NO_THROW(resolve(o, 1, false));
}

TEST_F(Deepspeed, UnknownKeysAndInvalidFilesAreReported) {
  EXPECT_NE(
      error_message(R"({"train_batchsize": 4})").find("train_batchsize: unknown key. Did you mean train_batch_size?"),
      std::string::npos);
  EXPECT_NE(error_message(zero(R"("stag": 1)")).find("zero_optimization.stag: unknown key. Did you mean stage"),
            std::string::npos);
  EXPECT_NE(error_message(R"({"optimizer": "Adam"})").find("expected an object, {...}"), std::string::npos);
  EXPECT_NE(error_message(R"({"seed": 1, "seed": 2})").find("the key seed occurs twice"), std::string::npos);
  EXPECT_NE(error_message("{\n\"seed\": 1,\n}").find(".json:3: invalid JSON"), std::string::npos);
  EXPECT_NE(error_message("[]").find("expected a JSON object"), std::string::npos);
  EXPECT_NE(error_message("{\"gradient_clipping\": 1e400}").find("too large for a double"), std::string::npos);
  EXPECT_NE(error_message("").find("the file is empty"), std::string::npos);
  EXPECT_EQ(options("{\"seed\": 3  // a comment\n}").engine.seed, 3u);
}

TEST_F(Deepspeed, CommandLineOverridesConfigFileOverridesDeepspeed) {
  std::ofstream(ini_) << "zero-stage = 2\nclip = 3\n";
  const std::string json = R"({"zero_optimization": {"stage": 1}, "gradient_clipping": 5, "seed": 9})";
  const TrainOptions o = options(json, {"--config", ini_, "--clip", "4"});
  EXPECT_EQ(o.engine.zero_stage, 2);
  EXPECT_EQ(o.engine.clip, 4);
  EXPECT_EQ(o.engine.seed, 9u);
  // The file of --config may contain the path of the DeepSpeed file.
  std::ofstream(ini_) << "deepspeed = " << path_ << "\nclip = 3\n";
  TrainOptions named;
  parse_train_arguments(named, {"--config", ini_});
  EXPECT_EQ(named.engine.zero_stage, 1);
  EXPECT_EQ(named.engine.clip, 3);
}

TEST_F(Deepspeed, BatchSizesAreResolvedAsInDeepspeed) {
  TrainOptions o = options(R"({"train_batch_size": 32, "gradient_accumulation_steps": 2})");
  resolve(o, 4, false);
  EXPECT_EQ(o.micro_batch, 4);
  EXPECT_EQ(o.engine.accumulate, 2);
  TrainOptions both = options(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2})");
  resolve(both, 4, false);
  EXPECT_EQ(both.engine.accumulate, 4);
  TrainOptions micro = options(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3})");
  resolve(micro, 4, false);
  EXPECT_EQ(micro.global_batch, 24);
  TrainOptions uneven = options(R"({"train_batch_size": 30})");
  EXPECT_THROW(resolve(uneven, 4, false), UsageError);
  TrainOptions by_flag = options(R"({"train_batch_size": 32})", {"--micro-batch", "1"});
  resolve(by_flag, 4, false);
  EXPECT_EQ(by_flag.engine.accumulate, 8);
}

/// As in DeepSpeed, gradient_accumulation_steps is the number of micro-batches of a pipeline, and the ranks of one
/// pipeline stage read different data.
TEST_F(Deepspeed, BatchSizesOfPipelinesAreThoseOfOneStage) {
  const std::string stages = R"(, "pipeline": {"stages": 2}})";
  TrainOptions o = options(R"({"train_batch_size": 32, "gradient_accumulation_steps": 8)" + stages);
  resolve(o, 4, false);
  EXPECT_EQ(o.micro_batch, 2);
  EXPECT_EQ(o.engine.accumulate, 8);
  TrainOptions micro = options(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3)" + stages,
                               {"--pipeline", "4"});
  resolve(micro, 4, false);
  EXPECT_EQ(micro.global_batch, 6);
  TrainOptions uneven = options(R"({"train_batch_size": 30, "gradient_accumulation_steps": 4)" + stages);
  try {
    resolve(uneven, 4, false);
    FAIL() << "30 is not a multiple of 2 x 4";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("2 ranks per pipeline stage x 4 micro-batches"), std::string::npos);
  }
}

/// No key is listed twice, and every option that a key sets exists.
TEST_F(Deepspeed, KeysAreUniqueAndMapToExistingOptions) {
  TrainOptions o;
  const OptionTable table = train_option_table(o);
  std::vector<std::string> seen;
  for (const DeepspeedKey& key : deepspeed_keys()) {
    seen.emplace_back(key.path);
    EXPECT_TRUE(key.handling != KeyHandling::kMapped || table.find(key.what) != nullptr) << key.path;
  }
  std::ranges::sort(seen);
  EXPECT_EQ(std::ranges::adjacent_find(seen), seen.end());
}

/// docs/deepspeed.md names every key that the reader knows. An ignored block may appear as `BLOCK.enabled`.
TEST_F(Deepspeed, TheGuideNamesEveryKey) {
  std::ifstream file(ALIQUOT_DEEPSPEED_GUIDE);
  const std::string guide{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(guide.empty());
  for (const DeepspeedKey& key : deepspeed_keys()) {
    const std::string path(key.path), name = path.substr(path.rfind('.') + 1);
    const bool named =
        guide.find("`" + path + "`") != std::string::npos || guide.find("`" + name + "`") != std::string::npos;
    const bool block =
        key.handling == KeyHandling::kIgnored && guide.find("`" + path + ".enabled`") != std::string::npos;
    EXPECT_TRUE(named || block) << path;
  }
}

TEST(ScaledRate, FollowsTheGlobalBatch) {
  TrainOptions o;
  parse_arguments(train_option_table(o), {"--lr", "0.1", "--min-lr", "0.01", "--schedule", "linear", "--scale-lr",
                                          "sqrt", "--base-batch", "2", "--global-batch", "32"});
  resolve(o, 2, false);
  EXPECT_DOUBLE_EQ(rate_schedule(o).lr, 0.4);
  EXPECT_DOUBLE_EQ(rate_schedule(o).min_lr, 0.04);
  o.scale_lr = RateScaling::kLinear;
  EXPECT_DOUBLE_EQ(rate_schedule(o).lr, 1.6);
  o.scale_lr = RateScaling::kNone;
  EXPECT_THROW(resolve(o, 2, false), UsageError);  // --base-batch requires --scale-lr
  o.scale_lr = RateScaling::kSqrt;
  o.base_batch.reset();
  EXPECT_THROW(resolve(o, 2, false), UsageError);
}

}  // namespace
}  // namespace aliquot::test
