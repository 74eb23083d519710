#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sched.h>
#include <sstream>

#include "apps/help/command_help.h"
#include "apps/models/shape.h"
#include "apps/options/deepspeed.h"
#include "apps/options/names_in_other_tools.h"
#include "apps/options/train_options.h"
#include "apps/plan/plan_options.h"
#include "apps/tokenize/data_options.h"
#include "engine/options/nearest.h"
#include "kernels/system/error.h"
#include "tests/checkpoint/support.h"

namespace aliquot::test {
namespace {

TrainOptions parsed(const std::vector<std::string>& arguments) {
  TrainOptions options;
  parse_arguments(train_option_table(options), arguments);
  return options;
}

// Returns the message of the UsageError, or "none" if the arguments are accepted.
std::string error_message(const std::vector<std::string>& arguments) {
  try {
    parsed(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "none";
}

testing::AssertionResult one_line_contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos && text.find('\n') == std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << text << "' is not one line that contains '" << part << "'";
}

TEST(Values, CountsAndBytesAcceptSuffixes) {
  EXPECT_EQ(parse_count("4096", {}), 4096);
  EXPECT_EQ(parse_count("7.5b", {}), 7'500'000'000);
  EXPECT_EQ(parse_count("12k", {}), 12000);
  EXPECT_EQ(parse_count("1.5t", {}), 1'500'000'000'000);
  EXPECT_EQ(parse_count("0.3M", {}), 300000);
  EXPECT_EQ(parse_bytes("24GiB"), int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("1.5 MiB"), 3 << 19);
  EXPECT_EQ(parse_bytes("80GB"), 80'000'000'000);
  EXPECT_EQ(parse_bytes("7"), 7);
  for (const char* bad : {"", "x", "-1", "1.5", "1e3", "3 q", "9999999999999999999999", "5GiB", "0x10"}) {
    EXPECT_THROW(parse_count(bad, {}), UsageError) << bad;
  }
  for (const char* bad : {"", "-1KB", "1.5", "3 km", "nan"}) EXPECT_THROW(parse_bytes(bad), UsageError) << bad;
  for (const char* bad : {"", "1,2", "nan", "inf", "1e999", "0.1x"})
    EXPECT_THROW(parse_real(bad, {}), UsageError) << bad;
  EXPECT_EQ(exact_text(0.1f), "0.1");
  EXPECT_EQ(exact_text(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(exact_text(std::nan("")), "null");
}

TEST(Nearest, SuggestsTheClosestName) {
  EXPECT_EQ(edit_distance("stage", "stage"), 0);
  EXPECT_EQ(edit_distance("stgae", "stage"), 1);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(nearest_names("zero-stag", {"steps", "zero-stage", "world"}), (std::vector<std::string>{"zero-stage"}));
  EXPECT_TRUE(nearest_names("quantum", {"steps", "zero-stage", "world"}).empty());
  EXPECT_EQ(did_you_mean("step", {"steps"}, "--"), " Did you mean --steps?");
  EXPECT_EQ(did_you_mean("4", {"0", "1", "2", "3"}, ""), "");
}

TEST(TrainOptions, AcceptsValuesAfterSpaceOrEqualsSign) {
  const TrainOptions o = parsed({"--zero-stage", "2", "--lr=1e-3", "--betas", "0.8,0.99", "--memory-budget", "24GiB",
                                 "--quiet", "--nesterov=off", "--offload", "disk:/scratch", "--seed", "0"});
  EXPECT_EQ(o.engine.zero_stage, 2);
  EXPECT_EQ(o.optimizer.lr, 1e-3);
  EXPECT_EQ(o.optimizer.beta1, 0.8);
  EXPECT_EQ(o.optimizer.beta2, 0.99);
  EXPECT_EQ(o.memory_budget, int64_t{24} << 30);
  EXPECT_TRUE(o.quiet);
  EXPECT_EQ(o.optimizer.nesterov, false);
  EXPECT_EQ(o.engine.offload_state, Offload::kDisk);
  EXPECT_EQ(o.engine.offload_state_to, "/scratch");
  EXPECT_EQ(o.engine.seed, 0u);
}

TEST(TrainOptions, ErrorsAreOneLineWithFlagAndRemedy) {
  EXPECT_TRUE(one_line_contains(error_message({"--zero-stag", "2"}), "--zero-stage?"));
  EXPECT_TRUE(one_line_contains(error_message({"--zero", "2"}), "unknown option"));
  EXPECT_TRUE(one_line_contains(error_message({"--zero-stage", "5"}),
                                "--zero-stage: invalid value '5': expected one of 0, 1, 2, 3."));
  EXPECT_TRUE(one_line_contains(error_message({"--optimizer", "adamv"}), "Did you mean adam"));
  EXPECT_TRUE(one_line_contains(error_message({"--model", "gpt-124m"}), "gpt2-124m"));
  EXPECT_TRUE(one_line_contains(error_message({"--steps", "0"}), "--steps: invalid value '0'"));
  EXPECT_TRUE(one_line_contains(error_message({"--steps"}), "--steps"));
  EXPECT_TRUE(one_line_contains(error_message({"--lr", "fast"}), "--lr"));
  EXPECT_TRUE(one_line_contains(error_message({"--lr", "-1"}), "--lr"));
  EXPECT_TRUE(one_line_contains(error_message({"--lr", "1e30"}),
                                "--lr: invalid value '1e30': expected a number from 0 to 1e+29."));
  EXPECT_TRUE(one_line_contains(error_message({"nano"}), "unexpected argument 'nano'"));
  EXPECT_TRUE(one_line_contains(error_message({"--betas", "0.9"}), "--betas"));
  EXPECT_TRUE(one_line_contains(error_message({"--offload", "disk:"}), "--offload"));
  EXPECT_TRUE(one_line_contains(error_message({"--offload", "disk:DIR"}), "replace DIR by a directory"));
  EXPECT_TRUE(one_line_contains(error_message({"--betas", "0.9,1"}), "expected a number of at least 0 and below 1"));
  EXPECT_TRUE(one_line_contains(error_message({"--trace="}), "--trace"));
  EXPECT_TRUE(one_line_contains(error_message({"-z"}), "-z"));
  EXPECT_TRUE(one_line_contains(error_message({"--steps", "5", "--steps", "6"}), "none"));  // the last value applies
}

TEST(TrainOptions, EveryChoiceInAHintParses) {
  TrainOptions options;
  const OptionTable table = train_option_table(options);
  int words = 0;
  for (const OptionTable::Entry& entry : table.entries()) {
    std::istringstream hint(entry.option.hint.find('|') == std::string::npos ? "" : entry.option.hint);
    for (std::string word; std::getline(hint, word, '|');) {
      if (std::ranges::any_of(word, [](char letter) { return letter >= 'A' && letter <= 'Z'; })) continue;
      entry.option.set(word);
      const bool is_unset = entry.option.name == "accumulate-into" && word == "auto";
      EXPECT_EQ(text_of(entry.option.get()), is_unset ? "" : word) << entry.option.name;
      ++words;
    }
  }
  EXPECT_GT(words, 50);
  EXPECT_EQ(parsed({"--schedule", "inverse-sqrt"}).schedule, RateShape::kInverseSqrt);
  EXPECT_EQ(parsed({"--scale-lr", "sqrt"}).scale_lr, RateScaling::kSqrt);
  EXPECT_EQ(parsed({"--warmup-shape", "log"}).warmup_shape, WarmupShape::kLog);
  EXPECT_TRUE(one_line_contains(error_message({"--schedule", "cosin"}),
                                "expected one of constant, linear, cosine, wsd, inverse-sqrt."));
}

TEST(OtherTools, NamesOfOtherToolsGetTheirOwnSuggestion) {
  struct Case {
    const char *given, *suggestion;
  };
  for (const Case& one : {Case{"--batch-size", "Use --micro-batch or --global-batch."},
                          {"--batch_size", "Use --micro-batch or --global-batch."},
                          {"--learning-rate", "Use --lr."},
                          {"--seq-len", "Use --sequence."},
                          {"--max-steps", "Use --steps."},
                          {"--stage", "Use --zero-stage."},
                          {"-z", "Use --zero-stage."},
                          {"--lora-rank", "Use --lora."},
                          {"--max_grad_norm", "Use --clip."}}) {
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{one.given, "2"}, {"--steps", "3", one.given, "2"}}) {
      EXPECT_TRUE(one_line_contains(error_message(arguments), std::string("unknown option ") + one.given + ". " +
                                                                  one.suggestion + " --help lists all options"));
    }
  }
  EXPECT_TRUE(one_line_contains(error_message({"--zero_stage", "2"}), "Did you mean --zero-stage?"));
  PlanOptions plan;
  EXPECT_EQ(name_in_other_tools("stage", plan_option_table(plan), "--"), " Use --zero-stage or --stages.");
  EXPECT_EQ(name_in_other_tools("learning-rate", plan_option_table(plan), "--"), "");
  DataOptions data;
  const OptionTable of_data = data_option_table(data);
  EXPECT_EQ(name_in_other_tools("json-keys", of_data, "--"), " Use --text-field.");
  EXPECT_EQ(name_in_other_tools("vocab_size", of_data, "--"), " Use --learn-tokenizer.");
  EXPECT_EQ(name_in_other_tools("workers", of_data, "--"), " Use --threads.");
}

/// Changes the working directory while the object exists.
class WorkingDirectory {
 public:
  explicit WorkingDirectory(const std::filesystem::path& path) { std::filesystem::current_path(path); }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;
  ~WorkingDirectory() { std::filesystem::current_path(before_); }

 private:
  std::filesystem::path before_ = std::filesystem::current_path();
};

TEST(DataArguments, AFileThatBeginsWithADashNeedsADirectory) {
  const TemporaryDirectory folder;
  const WorkingDirectory in(folder.path());
  const auto refusal = [](const std::string& file) -> std::string {
    try {
      parse_data_arguments({file, "--tokenizer", "t.json", "--out", "o.h5"});
    } catch (const UsageError& error) {
      return error.what();
    }
    return "none";
  };
  for (const std::string name : {"-x.txt", "--x.txt"}) {
    const std::string remark = " To name a file that begins with a dash, write ./" + name + ".";
    EXPECT_TRUE(one_line_contains(refusal(name), "unknown option " + name + "."));
    EXPECT_EQ(refusal(name).find(remark), std::string::npos) << "there is no such file";
    std::ofstream(name) << "text";
    EXPECT_TRUE(one_line_contains(refusal(name), remark));
    EXPECT_EQ(refusal("./" + name), "none");
  }
}

/// A launcher or taskset can bind the command to a part of the machine.
TEST(DataArguments, TheDefaultOfThreadsIsTheCoresOfTheProcess) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(encoder_thread_count({}), CPU_COUNT(&before));
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(encoder_thread_count({}), 1);
  DataOptions three;
  three.threads = 3;
  EXPECT_EQ(encoder_thread_count(three), 3);
  sched_setaffinity(0, sizeof before, &before);
}

/// Such a name would never be suggested, because it is an option of the command.
TEST(OtherTools, NoNameIsAnOptionOfTrain) {
  TrainOptions options;
  const OptionTable table = train_option_table(options);
  for (const std::string& name : table.names()) EXPECT_EQ(name_in_other_tools(name, table, "--"), "") << name;
}

class ConfigFile : public testing::Test {
 protected:
  ~ConfigFile() override { std::filesystem::remove(path_); }
  std::string write(const std::string& text) {
    std::ofstream(path_) << text;
    return path_;
  }
  std::string path_ = testing::TempDir() + "aliquot_options.ini";
};

TEST_F(ConfigFile, IsReadBeforeTheCommandLine) {
  const std::string path =
      write("# a run\nzero-stage = 1\n[section]\nmicro_batch=2  # two\n\nquiet\nmodel = gpt2-124m\r\n");
  const TrainOptions o = parsed({"--zero-stage", "2", "--config", path});
  EXPECT_EQ(o.engine.zero_stage, 2);
  EXPECT_EQ(o.micro_batch, 2);
  EXPECT_EQ(o.model, "gpt2-124m");
  EXPECT_TRUE(o.quiet);
}

TEST_F(ConfigFile, ErrorsNameFileAndLine) {
  EXPECT_TRUE(one_line_contains(error_message({"--config", write("steps = 3\nzero_stge = 2\n")}),
                                path_ + ":2: unknown key 'zero-stge'. Did you mean zero-stage?"));
  EXPECT_TRUE(one_line_contains(error_message({"--config", write("batch_size = 8\n")}),
                                path_ + ":1: unknown key 'batch-size'. Use micro-batch or global-batch. Keys are"));
  EXPECT_TRUE(one_line_contains(error_message({"--config", write("steps = many\n")}),
                                path_ + ":1: steps: invalid value 'many'"));
  EXPECT_TRUE(one_line_contains(error_message({"--config", write("steps\n")}), "write steps = VALUE"));
  EXPECT_TRUE(one_line_contains(error_message({"--config", write("lr 0.1\n")}),
                                path_ + ":1: 'lr 0.1' has no '=': expected the form name = value."));
  EXPECT_TRUE(one_line_contains(error_message({"--config", write("config = more.ini\n")}),
                                "give --config on the command line"));
  EXPECT_TRUE(one_line_contains(error_message({"--config", "/no/such.ini"}), "cannot be read"));
  EXPECT_TRUE(one_line_contains(error_message({"--config", testing::TempDir()}), "cannot be read"));
}

TEST(TrainOptions, HelpListsEveryOptionWithItsDefaultIn120Columns) {
  TrainOptions options;
  const OptionTable table = train_option_table(options);
  const std::string help = option_help(help_options(table));
  for (const std::string& name : table.names()) EXPECT_NE(help.find("  --" + name), std::string::npos) << name;
  EXPECT_NE(help.find("--zero-stage 0|1|2|3  (3)"), std::string::npos);
  EXPECT_NE(help.find("--betas X,Y  (0.9,0.95)"), std::string::npos);
  for (size_t at = 0; at < help.size();) {
    const size_t end = help.find('\n', at);
    EXPECT_LE(end - at, 120u) << help.substr(at, end - at);
    at = end + 1;
  }
}

TEST(TrainOptions, ResolvesShapeBatchAndPrecision) {
  TrainOptions o = parsed({"--width", "64", "--global-batch", "32"});
  resolve(o, 2, false);
  EXPECT_EQ(o.hidden, 256);
  EXPECT_EQ(o.sequence, 128);
  EXPECT_EQ(o.engine.accumulate, 4);
  EXPECT_EQ(o.precision, DType::kFloat32);
  EXPECT_EQ(o.engine.accumulate_into, AccumulateInto::kShard);
  TrainOptions uneven = parsed({"--global-batch", "30"});
  EXPECT_THROW(resolve(uneven, 2, false), UsageError);
  TrainOptions bad_heads = parsed({"--heads", "3"});
  EXPECT_THROW(resolve(bad_heads, 1, false), UsageError);
  TrainOptions without_directory = parsed({"--resume", "auto"});
  EXPECT_THROW(resolve(without_directory, 1, false), UsageError);
}

TEST(TrainOptions, AcceptsTf32OnlyForFp32OnGpus) {
  TrainOptions on_gpu = parsed({"--products", "tf32", "--precision", "fp32"});
  resolve(on_gpu, 1, true);
  EXPECT_EQ(on_gpu.products, OperandRounding::kTf32);
  TrainOptions in_bf16 = parsed({"--products", "tf32"});
  EXPECT_THROW(resolve(in_bf16, 1, true), UsageError);
}

TEST(TrainOptions, AcceptsFp8OnlyForBf16OnGpus) {
  TrainOptions on_gpu = parsed({"--products", "fp8"});
  resolve(on_gpu, 1, true);
  EXPECT_EQ(on_gpu.products, OperandRounding::kFp8);
  for (const char* precision : {"fp32", "fp16"}) {
    TrainOptions other = parsed({"--products", "fp8", "--precision", precision});
    EXPECT_THROW(resolve(other, 1, true), UsageError);
  }
  // The scales of the parts of a weight depend on the number of ranks that divide it.
  TrainOptions reproducible = parsed({"--products", "fp8", "--reproducible", "--tensor", "2"});
  EXPECT_THROW(resolve(reproducible, 2, true), UsageError);
}

TEST(TrainOptions, AcceptsCudnnOnlyFor16BitsOnGpus) {
  for (const char* precision : {"bf16", "fp16"}) {
    TrainOptions on_gpu = parsed({"--attention", "cudnn", "--precision", precision});
    resolve(on_gpu, 1, true);
    EXPECT_EQ(on_gpu.attention, AttentionKernels::kCudnn);
  }
  TrainOptions in_fp32 = parsed({"--attention", "cudnn", "--precision", "fp32"});
  EXPECT_THROW(resolve(in_fp32, 1, true), UsageError);
  EXPECT_EQ(error_message({"--attention", "flash"}), "--attention: invalid value 'flash': expected one of own, cudnn.");
}

TEST(PlanOptions, AcceptsCudnnOnlyFor16BitsOnGpus) {
  PlanOptions options;
  options.attention = AttentionKernels::kCudnn;
  EXPECT_THROW(resolve_precision(options, false), UsageError);
  options.precision.reset();
  resolve_precision(options, true);
  options.precision = DType::kFloat32;
  EXPECT_THROW(resolve_precision(options, true), UsageError);
}

TEST(TrainOptions, RefusesOptionsThatContradictEachOther) {
  struct Case {
    std::vector<std::string> arguments;
    const char* message;
  };
  for (const Case& wrong : std::initializer_list<Case>{
           {{"--global-batch", "32", "--accumulate", "3"}, "--accumulate 3 contradicts --global-batch 32"},
           {{"--global-batch", "4194304", "--micro-batch", "1"}, " micro-batches per step"},
           {{"--update-in-backward"},
            "--update-in-backward updates parameters before the global gradient norm is known"},
           {{"--update-in-backward", "--clip", "0", "--skip-spikes", "4"}, "leave one of them out"},
           {{"--warmup-from", "1"}, "--warmup-from 1 is above --lr"},
           {{"--min-lr", "1"}, "--min-lr 1 is above --lr"},
           {{"--warmup", "20", "--steps", "10"}, "--warmup 20 is longer than --steps 10"},
           {{"--scale-lr", "linear"}, "--scale-lr needs --base-batch"},
           {{"--base-batch", "8"}, "--base-batch has no effect with --scale-lr none"},
           {{"--products", "tf32"}, "--products tf32 needs --device cuda and --precision fp32"},
           {{"--products", "fp8", "--precision", "bf16"}, "--products fp8 needs --device cuda and --precision bf16"},
           {{"--attention", "cudnn", "--precision", "bf16"},
            "--attention cudnn needs --device cuda and --precision bf16"},
           {{"--checkpoint-every", "5"}, "--checkpoint-every needs --checkpoint-dir"},
           {{"--resume", "a", "--init", "b"}, "leave one out"},
           {{"--eval-every", "5"}, "--eval-every needs --eval-data"},
           {{"--sample-every", "5"}, "--sample-every needs --sample-prompt"},
           {{"--sample-prompt", "a"}, "--sample-prompt needs --sample-every N"},
           {{"--digest-every", "5"}, "--digest-every needs --metrics FILE"},
           {{"--reproducible", "--accumulate", "2", "--accumulate-into", "full"}, "leave out --accumulate-into full"},
           {{"--sequence", "100000"}, "longer than the model's context"},
           {{"--memory-budget", "0"}, "invalid value '0' for --memory-budget"},
           {{"--layers", "65537"}, "--layers: invalid value '65537'"},
           {{"--kv-heads", "2"}, "omit --kv-heads"}}) {
    try {
      TrainOptions options = parsed(wrong.arguments);
      resolve(options, 2, false);
      ADD_FAILURE() << "the options were accepted, expected the error: " << wrong.message;
    } catch (const UsageError& error) {
      EXPECT_TRUE(one_line_contains(error.what(), wrong.message));
    }
  }
}

TEST(TrainOptions, WarnsOfOptionsWithoutEffect) {
  const auto warnings = [](const std::vector<std::string>& arguments) {
    TrainOptions options;
    return parse_train_arguments(options, arguments);
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(warnings({"--momentum", "0.5"}), Words{"--momentum has no effect with --optimizer adamw."});
  EXPECT_EQ(warnings({"--optimizer", "sgd", "--momentum", "0.5", "--muon-lr", "0.1"}),
            Words{"--muon-lr has no effect with --optimizer sgd."});
  EXPECT_EQ(warnings({"--keep", "5"}), Words{"--keep has no effect without --checkpoint-dir."});
  EXPECT_EQ(
      warnings({"--min-lr", "1e-5", "--schedule", "constant", "--metrics-every", "3"}),
      (Words{"--min-lr has no effect with --schedule constant.", "--metrics-every has no effect without --metrics."}));
  EXPECT_EQ(warnings({"--optimizer", "muon", "--momentum", "0.5", "--muon-lr", "0.1", "--nesterov", "--keep", "5",
                      "--save", "blocking", "--checkpoint-dir", "runs", "--min-lr", "1e-5"}),
            Words{});
}

/// A checkpoint or a file may define the shape. The plan of a model with many layers would use up the machine's memory.
TEST(ModelShape, RejectsMoreLayersThanAPlanCanHave) {
  ShapeOptions options;
  options.file_shape = find_model_preset("gpt2-nano")->shape;
  options.file_shape->layers = 65536;
  EXPECT_EQ(model_shape(options).layers, 65536);
  options.file_shape->layers = 100'000'000;
  try {
    model_shape(options);
    ADD_FAILURE() << "the shape was accepted";
  } catch (const UsageError& error) {
    EXPECT_TRUE(one_line_contains(error.what(), "the model has 100000000 layers, but a plan can have at most 65536"));
  }
}

/// A head_dim that equals hidden_size / num_attention_heads stays too.
TEST(ModelShape, KeepsTheHeadDimOfAFile) {
  const TemporaryDirectory folder;
  const std::string file = folder.path() / "config.json";
  const auto shape_with = [&](const std::string& keys, const std::vector<std::string>& flags) {
    write_file(file, R"({"model_type": "mistral", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
      "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64, "vocab_size": 256)" +
                         keys + "}");
    std::vector<std::string> arguments{"--model", file};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return model_shape(parsed(arguments));
  };
  for (const std::string head_dim : {"8", "6"}) {
    const std::string keys = ", \"head_dim\": " + head_dim;
    const int64_t elements = std::stoll(head_dim);
    EXPECT_EQ(shape_with(keys, {"--heads", "8"}).head_width(), elements);
    EXPECT_EQ(shape_with(keys, {"--heads", "8"}).query_width(), 8 * elements);
    EXPECT_EQ(shape_with(keys, {"--width", "30"}).head_width(), elements);
    EXPECT_EQ(shape_with(keys, {"--width", "64", "--heads", "6"}).head_width(), elements);
    // The last --model counts, and presets have no head_dim.
    EXPECT_EQ(shape_with(keys, {"--model", "llama-nano", "--heads", "2"}).head_width(), 64);
  }
  EXPECT_EQ(shape_with(", \"head_dim\": 4", {"--heads", "8"}), shape_with("", {"--heads", "8"}));
  EXPECT_EQ(shape_with("", {"--width", "64"}).head_width(), 16);
}

TEST(ModelShape, RejectsInvalidLayerCounts) {
  for (const int64_t layers : {int64_t{0}, int64_t{-1}, (int64_t{1} << 31) + 1}) {
    ModelShape shape = find_model_preset("gpt2-nano")->shape;
    EXPECT_NO_THROW(check(shape));
    shape.layers = layers;
    EXPECT_THROW(check(shape), UsageError) << layers;
  }
}

}  // namespace
}  // namespace aliquot::test
