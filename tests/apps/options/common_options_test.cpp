// Checks that the command and the C interface parse all shared options in the same way: both accept and refuse the same
// spellings, and read the same values from them.
#include <algorithm>
#include <aliquot/c.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "apps/options/train_options.h"
#include "capi/options.h"
#include "engine/options/policy_of.h"
#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

using Spellings = std::vector<std::string>;

struct OptionCase {
  std::string name;
  std::vector<Spellings> values;  // each element holds the spellings of one value
  Spellings refused;
};

const std::vector<Spellings> kSwitch = {{"on", "true", "yes", "1", " on "}, {"off", "false", "no", "0", "off "}};
const Spellings kNoSwitch = {"", "maybe", "On", "2", "onn"}, kNoCount = {"", "-1", "1.5", "two", "1e3", "1 x", "0x1"},
                kNoRate = {"", "-1", "fast", "nan", "inf", "1e30", "0.1x"},
                kNoOffload = {"", "disk:", "disk:DIR", "tape", "Host"};
const std::vector<Spellings> kRates = {{"0", "0.0", "0e5"}, {"3e-4", "0.0003", " 3E-4 "}, {"1e29"}};
const std::vector<Spellings> kGradientTypes = {{"fp32", " fp32"}, {"bf16", "bf16 "}};
const Spellings kNoGradientType = {"", "fp16", "float", "BF16"};
const std::vector<Spellings> kCounts = {
    {"1", "01", " 1"}, {"2", "2 "}, {"12k", "12000", "12K", "12 k"}, {"0.5m", "500000"}};

const std::vector<OptionCase> kCases = {
    {"device", {{"auto"}, {"host", " host "}, {"cuda"}}, {"", "gpu", "Host"}},
    {"world", {{"auto"}, {"threads"}, {"mpi"}, {"nccl"}}, {"", "thread", "MPI"}},
    {"threads", {{"1"}, {"4k", "4000"}, {"4096"}}, {"", "0", "4097", "-1", "1.5"}},
    {"timeout", {{"600", "6e2", "600.0"}, {"12.5"}, {"1e9"}, {"0.001"}}, {"", "0", "-1", "inf", "nan", "2e9", "long"}},
    {"zero-stage", {{"0"}, {"1", " 1"}, {"2"}, {"3", "3 "}}, {"", "4", "-1", "three", "03"}},
    {"replicas", kCounts, {"", "0", "-1", "1.5", "2m"}},
    {"pipeline", {{"1"}, {"2", " 2"}, {"1k", "1000"}, {"65536"}}, {"", "0", "-1", "1.5", "65537"}},
    {"tensor", {{"1"}, {"2", " 2"}, {"1k", "1000"}, {"65536"}}, {"", "0", "-1", "1.5", "65537"}},
    {"pipeline-schedule", {{"gpipe"}, {"1f1b", " 1f1b"}, {"interleaved"}}, {"", "1F1B", "zero"}},
    {"virtual-stages", {{"0"}, {"2", " 2"}, {"65536"}}, {"", "-1", "1.5", "65537"}},
    {"pipeline-cut", {{"1"}, {"2,3", "2, 3"}, {"1,1k,1", "1,1000,1"}}, {"", "0", "1,", ",1", "1,,2", "1;2", "-1"}},
    {"accumulate", kCounts, {"", "0", "-1", "1.5", "2m"}},
    {"accumulate-into", {{"auto"}, {"full"}, {"shard"}}, {"", "both", "Full"}},
    {"prefetch", {{"0"}, {"1"}, {"12k", "12000"}, {"1048576"}}, kNoCount},
    {"keep-gathered", {{"0"}, {"1"}, {"12k", "12000"}, {"1048576"}}, kNoCount},
    {"gather-for", {{"auto"}, {"pass"}, {"step"}, {"1"}, {"12k", "12000"}}, {"", "0", "all", "-1", "1.5"}},
    {"recompute", {{"auto"}, {"none", "0"}, {"block", "2147483647"}, {"5"}}, {"", "all", "-1", "1.5", "2147483648"}},
    {"gather", {{"auto"}, {"view"}, {"copy"}}, {"", "views", "Copy"}},
    {"offload", {{"none"}, {"host"}, {"disk:/tmp"}, {"disk:a b"}}, kNoOffload},
    {"offload-parameters", {{"none"}, {"host"}, {"disk:/tmp"}, {"disk:a b"}}, kNoOffload},
    {"update-in-backward", kSwitch, kNoSwitch},
    {"reproducible", kSwitch, kNoSwitch},
    {"quantize", {{"none"}, {"weights"}, {"gradients"}, {"both"}}, {"", "all", "Both"}},
    {"max-skipped", {{"0"}, {"10"}, {"1k", "1000"}, {"2147483647"}}, {"", "-1", "1.5", "2147483648"}},
    {"check-state", kSwitch, kNoSwitch},
    {"graph", {{"auto"}, {"on"}, {"off"}}, {"", "yes", "ON"}},
    {"replay-every", {{"auto"}, {"0"}, {"10"}, {"1k", "1000"}}, {"", "-1", "1.5", "never", "2147483648"}},
    {"check", kSwitch, kNoSwitch},
    {"nccl-channels", {{"0"}, {"4"}, {"64"}}, {"", "-1", "65", "many"}},
    {"nccl-copy-engines", kSwitch, kNoSwitch},
    {"nccl-gather-communicator", kSwitch, kNoSwitch},
    {"nccl-staging", {{"64MiB", "67108864", "64mib"}, {"1000"}, {"1GiB", "1024MiB"}}, {"", "-1", "1.5", "much"}},
    {"memory-budget",
     {{"0"},
      {"1536", "1.5KiB", "1.5kib", "1.5 KIB"},
      {"2GiB", "2gib", "2 GiB", "2147483648"},
      {"80GB", "80gb", "80000000000", "80000000000B"},
      {"1TB", "1000gb"}},
     {"", "-1", "1.5", "2 parsecs", "1e30TiB", "nan"}},
    {"precision", {{"fp32"}, {"bf16"}, {"fp16", " fp16"}}, {"", "fp64", "FP16"}},
    {"gradients", kGradientTypes, kNoGradientType},
    {"reduce-precision", kGradientTypes, kNoGradientType},
    {"master", {{"split"}, {"fp32"}}, {"", "bf16"}},
    {"state", kGradientTypes, kNoGradientType},
    {"optimizer", {{"adamw"}, {"adam"}, {"adamw8bit"}, {"lion"}, {"sgd"}, {"muon"}}, {"", "best", "AdamW"}},
    {"lr", kRates, kNoRate},
    {"betas", {{"0.9,0.95", "0.9, 0.95", "9e-1,95e-2"}, {"0,0"}}, {"", "0.9", "0.9,1", "1,0.9", "-0.1,0.9", "0.9,x"}},
    {"eps", kRates, kNoRate},
    {"weight-decay", kRates, kNoRate},
    {"momentum", {{"0"}, {"0.9", "9e-1"}, {"0.99"}}, {"", "-1", "1", "1.1", "nan"}},
    {"nesterov", kSwitch, kNoSwitch},
    {"muon-lr", kRates, kNoRate},
    {"muon-products", kGradientTypes, kNoGradientType},
    {"clip", {{"0"}, {"0.5", "5e-1"}, {"1e300"}}, {"", "-1", "nan", "inf"}},
    {"seed",
     {{"0"}, {"7"}, {"12k", "12000"}, {"18446744073709551615"}},
     {"", "-1", "1.5", "x", "18446744073709551616"}},
};

/// The result of setting an option: the new value of the option, or the error message.
struct Outcome {
  OptionValue value;
  std::string error;  // empty if the option was set
};

/// Sets an option through the table of `aliquot train`. An option that train lacks, such as `check`, is set through the
/// common table.
Outcome by_command(const std::string& name, const std::string& text) {
  TrainOptions options;
  const OptionTable train = train_option_table(options), common = common_option_table(options);
  const std::string flag = "--" + name;
  try {
    if (train.find(name) != nullptr) {
      set_options(train, {{name, flag, text}});
    } else {
      set_options(common, {{name, flag, text}});
    }
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with(flag + ": ")) << message;
    return {{}, message.substr(flag.size() + 2)};
  }
  return {common.find(name)->get(), ""};
}

Outcome by_c(const std::string& name, const std::string& text) {
  aliquot_options* made = nullptr;
  EXPECT_EQ(aliquot_options_create(&made), ALIQUOT_DONE);
  const std::unique_ptr<aliquot_options, decltype(&aliquot_options_free)> options(made, aliquot_options_free);
  if (aliquot_options_set(made, name.c_str(), text.c_str()) == ALIQUOT_DONE)
    return {common_option_table(made->options).find(name)->get(), ""};
  const std::string message = aliquot_message(), start = "the option " + name + ": ";
  EXPECT_TRUE(message.starts_with(start)) << message;
  return {{}, message.substr(std::min(start.size(), message.size()))};
}

TEST(CommonOptions, AllAreOptionsOfTrainAndAreCoveredHere) {
  TrainOptions options;
  const OptionTable train = train_option_table(options), common = common_option_table(options);
  for (const std::string& name : common.names()) {
    EXPECT_TRUE(train.find(name) != nullptr || name == "check") << name;
    EXPECT_EQ(std::ranges::count(kCases, name, &OptionCase::name), 1) << name;
  }
  EXPECT_EQ(kCases.size(), common.names().size());
}

TEST(CommonOptions, CommandAndCReadTheSameValues) {
  for (const OptionCase& one : kCases) {
    std::vector<OptionValue> seen;
    for (const Spellings& spellings : one.values) {
      const Outcome first = by_command(one.name, spellings.front());
      EXPECT_EQ(std::ranges::count(seen, first.value), 0) << one.name << " " << spellings.front();
      seen.push_back(first.value);
      for (const std::string& text : spellings) {
        SCOPED_TRACE(one.name + " '" + text + "'");
        const Outcome command = by_command(one.name, text), c = by_c(one.name, text);
        EXPECT_EQ(command.error, "");
        EXPECT_EQ(c.error, "");
        EXPECT_TRUE(command.value == first.value && c.value == first.value);
      }
    }
  }
}

TEST(CommonOptions, CommandAndCRejectTheSameTextsWithTheSameMessage) {
  for (const OptionCase& one : kCases) {
    for (const std::string& text : one.refused) {
      SCOPED_TRACE(one.name + " '" + text + "'");
      const Outcome command = by_command(one.name, text), c = by_c(one.name, text);
      EXPECT_NE(command.error, "");
      EXPECT_EQ(command.error, c.error);
      EXPECT_EQ(c.error.find("--"), std::string::npos) << c.error;
    }
  }
}

/// Every option is set to a value other than its default.
CommonOptions all_set() {
  CommonOptions o;
  const OptionTable table = common_option_table(o);
  for (const auto& [name, text] : std::vector<std::pair<const char*, const char*>>{{"device", "cuda"},
                                                                                   {"world", "mpi"},
                                                                                   {"threads", "3"},
                                                                                   {"timeout", "9"},
                                                                                   {"zero-stage", "2"},
                                                                                   {"replicas", "4"},
                                                                                   {"accumulate", "5"},
                                                                                   {"accumulate-into", "full"},
                                                                                   {"prefetch", "6"},
                                                                                   {"keep-gathered", "7"},
                                                                                   {"recompute", "block"},
                                                                                   {"gather", "copy"},
                                                                                   {"offload", "disk:d"},
                                                                                   {"offload-parameters", "host"},
                                                                                   {"update-in-backward", "on"},
                                                                                   {"reproducible", "on"},
                                                                                   {"quantize", "both"},
                                                                                   {"max-skipped", "8"},
                                                                                   {"check-state", "on"},
                                                                                   {"graph", "off"},
                                                                                   {"check", "on"},
                                                                                   {"memory-budget", "1KiB"},
                                                                                   {"precision", "fp16"},
                                                                                   {"gradients", "bf16"},
                                                                                   {"reduce-precision", "fp32"},
                                                                                   {"master", "fp32"},
                                                                                   {"state", "bf16"},
                                                                                   {"optimizer", "muon"},
                                                                                   {"lr", "0.5"},
                                                                                   {"muon-lr", "0.25"},
                                                                                   {"muon-products", "bf16"},
                                                                                   {"clip", "0.75"},
                                                                                   {"gather-for", "3"},
                                                                                   {"pipeline", "2"},
                                                                                   {"pipeline-schedule", "gpipe"},
                                                                                   {"virtual-stages", "3"},
                                                                                   {"pipeline-cut", "3,1"},
                                                                                   {"tensor", "2"},
                                                                                   {"seed", "11"},
                                                                                   {"replay-every", "12"}})
    table.find(name)->set(text);
  return o;
}

/// The structured binding lists all fields of EngineOptions. A new field must be added here, or the test does not
/// compile.
TEST(CommonOptions, SetEveryFieldOfEngineOptions) {
  const CommonOptions o = all_set();
  EXPECT_EQ(o.world.device, DeviceChoice::kCuda);
  EXPECT_EQ(o.world.kind, WorldChoice::kMpi);
  EXPECT_EQ(o.world.threads_per_rank, 3);
  EXPECT_EQ(o.world.timeout_seconds, 9);
  const EngineOptions e = o.engine_options();
  const auto& [zero_stage, replicas, precision, accumulate, tensor, pipeline, pipeline_schedule, virtual_stages,
               pipeline_cut, pass_order, accumulate_into, prefetch, keep_gathered, gather_for, recompute, gather,
               offload_state, offload_state_to, offload_parameters, offload_parameters_to, update_in_backward,
               reproducible, quantize_weights, quantize_gradients, memory_budget_bytes, between_steps_bytes, cost,
               optimizer, moments, clip, loss_scaling, seed, max_skipped, tell_skipped, check_state, replay_every,
               graph, check] = e;
  EXPECT_EQ(std::tie(zero_stage, replicas, accumulate, prefetch, keep_gathered), std::tuple(2, 4, 5, 6, 7));
  EXPECT_EQ(std::tie(accumulate_into, gather, gather_for, recompute),
            std::tuple(AccumulateInto::kFull, GatherMode::kCopy, 3, kRecomputeAll));
  EXPECT_EQ(std::tie(offload_state, offload_parameters), std::tuple(Offload::kDisk, Offload::kHost));
  EXPECT_EQ(std::tie(offload_state_to, offload_parameters_to), std::tuple("d", ""));
  EXPECT_TRUE(update_in_backward && reproducible && quantize_weights && quantize_gradients && check_state && check);
  EXPECT_EQ(std::tie(max_skipped, memory_budget_bytes, clip, seed), std::tuple(8, 1024, 0.75, 11u));
  EXPECT_EQ(replay_every, 12);
  EXPECT_EQ(graph, GraphMode::kOff);
  EXPECT_EQ(precision.compute, DType::kFloat16);
  EXPECT_EQ(precision.gradients, DType::kBFloat16);
  EXPECT_EQ(precision.reduce, DType::kFloat32);
  EXPECT_EQ(precision.master, MasterForm::kFp32);
  EXPECT_EQ(moments, DType::kBFloat16);
  EXPECT_EQ(std::get<Muon>(optimizer).lr, 0.25f);
  EXPECT_EQ(std::get<Muon>(optimizer).rest.lr, 0.5f);
  // No option sets the order of passes, the memory between steps, the cost model or the reporting of skipped steps.
  // Only a DeepSpeed file sets loss scaling.
  EXPECT_EQ(tensor, 2);
  EXPECT_EQ(between_steps_bytes, 0);
  EXPECT_EQ(cost.samples_per_micro_batch, EngineOptions().cost.samples_per_micro_batch);
  EXPECT_EQ(loss_scaling.loss_scale, 0);
  EXPECT_TRUE(tell_skipped);
  EXPECT_EQ(pipeline, 2);
  EXPECT_EQ(pipeline_schedule, PipelineSchedule::kGpipe);
  EXPECT_EQ(virtual_stages, 3);
  EXPECT_EQ(pipeline_cut, (std::vector{3, 1}));
  EXPECT_TRUE(pass_order.empty());
}

/// The options determine all fields of a policy except six. A file sets `pass_order`, the planner sets
/// `pass_times`, a memory budget sets `recompute_by_stage`, the command sets `between_steps_bytes`, and plans of
/// evaluations and replays set `evaluation` and `replay`.
TEST(CommonOptions, SetEveryFieldOfAPolicy) {
  const Policy made = policy_of(all_set().engine_options()), plain = policy_of({});
  const auto& [zero_stage, replica_count, precision, micro_batch_count, tensor, pipeline, pipeline_schedule,
               virtual_stages, pipeline_cut, pass_order, pass_times, accumulate_into, prefetch, keep_gathered,
               gather_for, recompute, recompute_by_stage, gather, offload_state, offload_parameters, update_in_backward,
               reproducible, quantize_weights, quantize_gradients, state_bytes_per_block, matrix_updates,
               between_steps_bytes, check_state, replay_every, check, evaluation, replay] = made;
  EXPECT_NE(tensor, plain.tensor);
  EXPECT_NE(zero_stage, plain.zero_stage);
  EXPECT_NE(replica_count, plain.replica_count);
  EXPECT_NE(precision.describe(), plain.precision.describe());
  EXPECT_NE(micro_batch_count, plain.micro_batch_count);
  EXPECT_NE(accumulate_into, plain.accumulate_into);
  EXPECT_NE(prefetch, plain.prefetch);
  EXPECT_NE(keep_gathered, plain.keep_gathered);
  EXPECT_NE(gather_for, plain.gather_for);
  EXPECT_NE(recompute, plain.recompute);
  EXPECT_NE(gather, plain.gather);
  EXPECT_NE(offload_state, plain.offload_state);
  EXPECT_NE(offload_parameters, plain.offload_parameters);
  EXPECT_NE(update_in_backward, plain.update_in_backward);
  EXPECT_NE(reproducible, plain.reproducible);
  EXPECT_NE(quantize_weights, plain.quantize_weights);
  EXPECT_NE(quantize_gradients, plain.quantize_gradients);
  EXPECT_NE(state_bytes_per_block, plain.state_bytes_per_block);
  EXPECT_NE(matrix_updates.has_value(), plain.matrix_updates.has_value());
  EXPECT_NE(check_state, plain.check_state);
  EXPECT_NE(replay_every, plain.replay_every);
  EXPECT_NE(check, plain.check);
  EXPECT_NE(pipeline, plain.pipeline);
  EXPECT_NE(pipeline_schedule, plain.pipeline_schedule);
  EXPECT_NE(virtual_stages, plain.virtual_stages);
  EXPECT_NE(pipeline_cut, plain.pipeline_cut);
  EXPECT_TRUE(pass_order.empty());
  EXPECT_EQ(between_steps_bytes, 0);
  EXPECT_TRUE(recompute_by_stage.empty());
  EXPECT_FALSE(evaluation || replay);
}

}  // namespace
}  // namespace aliquot::test
