// Runs random command lines of aliquot train. Every run that the command accepts must use exactly the memory that it
// planned, stay within its budget, and resume to the same checkpoint. Runs that differ only in options without effect
// on the result must have the same digest. A pipeline has no effect on the result if each pipeline stage has as many
// ranks as the run without a pipeline. draw_pipelined() lists the exceptions.
//
// ALIQUOT_FLAG_FUZZ="SEED COUNT" runs COUNT cases, beginning with SEED. The default is 12 cases, beginning with seed 1.
// A failure prints its seed.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "checkpoint/save.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/mpirun.h"

namespace aliquot {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

/// Random numbers that depend only on the seed of a case, so that one case can be repeated alone.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int below(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }
  bool chance(int percent) { return below(100) < percent; }
  std::string one_of(std::initializer_list<const char*> words) {
    return *(words.begin() + below(static_cast<int>(words.size())));
  }

 private:
  std::mt19937_64 random_;
};

enum class Pipelined : uint8_t { kNever, kSometimes, kAlways };

/// How ranks are started, and the options that may change the digest. `ranks` is the number of ranks per pipeline
/// stage.
struct Case {
  int ranks = 1, ranks_per_node = 0, uses = 0;
  Pipelined pipelined = Pipelined::kSometimes;
  bool processes = false, quantized = false, quantized_gradients = false, half = false, unclipped = false;
  bool tied = false, adds_in_full_gradients = false;
  Words words;
};

void add(Words& words, const Words& more) { words.insert(words.end(), more.begin(), more.end()); }

void draw_model(Draw& draw, Case& drawn) {
  Words& words = drawn.words;
  const int heads = 1 + draw.below(2), layers = 1 + draw.below(3);
  add(words, {"--model", draw.one_of({"gpt2-nano", "llama-nano"}), "--heads", std::to_string(heads), "--width",
              std::to_string(heads * 2 * (1 + draw.below(9))), "--layers", std::to_string(layers), "--sequence",
              draw.one_of({"4", "8", "17"}), "--micro-batch", draw.one_of({"1", "2"})});
  if (words[1] == "llama-nano") add(words, {"--kv-heads", draw.chance(50) ? "1" : std::to_string(heads)});
  drawn.uses = layers + (words[1] == "llama-nano" ? 3 : 4);
  drawn.tied = draw.chance(60);
  add(words, {"--tied", drawn.tied ? "on" : "off"});
}

void draw_numbers(Draw& draw, Case& drawn) {
  Words& words = drawn.words;
  const std::string precision = draw.one_of({"fp32", "fp32", "bf16", "bf16", "fp16"});
  drawn.half = precision == "fp16";
  add(words, {"--precision", precision});
  if (draw.chance(30)) add(words, {"--gradients", "bf16"});
  if (draw.chance(20)) add(words, {"--reduce-precision", "bf16"});
  add(words, {"--optimizer", draw.one_of({"adamw", "adamw", "adam", "adamw8bit", "lion", "sgd", "muon"})});
  if (draw.chance(20)) add(words, {"--state", "bf16"});
  const std::string clip = draw.one_of({"1.0", "0", "0.5"});
  drawn.unclipped = clip == "0";
  add(words, {"--clip", clip});
  if (const int accumulate = 1 + draw.below(4); accumulate > 1) {
    drawn.adds_in_full_gradients = draw.chance(40);
    add(words, {"--accumulate", std::to_string(accumulate), "--accumulate-into",
                drawn.adds_in_full_gradients ? "full" : "shard"});
  }
}

/// Decides which runs of a case have a pipeline. By default, some of them have one. If a pipeline may change the
/// digest, either all runs have one, or none has. In a tied model that accumulates full gradients, a pipeline changes
/// the digest. With quantized gradients, a pipeline may change the digest if pipeline stages share a node.
void draw_pipelined(Draw& draw, Case& drawn) {
  if (drawn.tied && drawn.adds_in_full_gradients)
    drawn.pipelined = draw.chance(60) ? Pipelined::kAlways : Pipelined::kNever;
  if (drawn.quantized_gradients && drawn.ranks % drawn.ranks_per_node != 0) drawn.pipelined = Pipelined::kNever;
}

Case draw_case(Draw& draw, bool has_mpi) {
  Case drawn;
  drawn.ranks = 1 + draw.below(4);
  drawn.processes = has_mpi && draw.chance(15);
  if (drawn.ranks > 1 && draw.chance(drawn.processes ? 60 : 15)) drawn.ranks_per_node = 1 + draw.below(2);
  draw_model(draw, drawn);
  draw_numbers(draw, drawn);
  if (draw.chance(25) && drawn.ranks > 1)
    add(drawn.words, {"--replicas", drawn.ranks == 4 ? "2" : std::to_string(drawn.ranks)});
  if (draw.chance(15)) add(drawn.words, {"--reproducible"});
  if (drawn.ranks_per_node > 0 && draw.chance(40)) {
    const std::string what = draw.one_of({"weights", "gradients", "both"});
    drawn.quantized = true;
    drawn.quantized_gradients = what != "weights";
    add(drawn.words, {"--quantize", what});
  }
  draw_pipelined(draw, drawn);
  return drawn;
}

/// Returns a random value of --pipeline-cut: the number of uses in each of `stages` pipeline stages. The command
/// rejects some of these values.
std::string draw_cut(Draw& draw, int uses, int stages) {
  std::vector<int> counts(static_cast<size_t>(stages), 1);
  for (int left = uses - stages; left > 0; --left) ++counts[static_cast<size_t>(draw.below(stages))];
  std::string text;
  for (const int count : counts) text += (text.empty() ? "" : ",") + std::to_string(count);
  return text;
}

Words draw_pipeline(Draw& draw, const Case& drawn) {
  const bool pipelined =
      drawn.pipelined == Pipelined::kAlways || (drawn.pipelined == Pipelined::kSometimes && draw.chance(55));
  if (!pipelined) return {};
  const int most = std::clamp(8 / drawn.ranks, 2, 4), stages = 2 + draw.below(most - 1);
  Words words{"--pipeline", std::to_string(stages)};
  if (draw.chance(50)) add(words, {"--pipeline-schedule", draw.one_of({"gpipe", "1f1b", "interleaved"})});
  if (draw.chance(40)) add(words, {"--pipeline-cut", draw_cut(draw, drawn.uses, stages)});
  return words;
}

/// Returns options that do not change the digest. A negative `stage` means a random ZeRO stage.
Words draw_free(Draw& draw, const Case& drawn, int stage, const std::string& scratch) {
  if (stage < 0) stage = draw.chance(40) ? 3 : draw.below(4);
  Words words{"--zero-stage",    std::to_string(stage),         "--prefetch",  std::to_string(draw.below(4)),
              "--keep-gathered", std::to_string(draw.below(3)), "--recompute", draw.one_of({"none", "block"}),
              "--gather",        draw.one_of({"auto", "copy"}), "--master",    draw.one_of({"split", "fp32"})};
  const std::string disk = "disk:" + scratch;
  if (draw.chance(35)) add(words, {"--offload", draw.chance(50) ? "host" : disk});
  if (stage == 3 && draw.chance(25)) add(words, {"--offload-parameters", draw.chance(50) ? "host" : disk});
  if (drawn.unclipped && !drawn.half && draw.chance(40)) add(words, {"--update-in-backward"});
  if (stage < 3 && drawn.ranks > 1 && draw.chance(40)) add(words, {"--check-every", "1"});
  if (draw.chance(25)) add(words, {"--eval-data", scratch + "/data.bytes", "--eval-every", "2"});
  add(words, draw_pipeline(draw, drawn));
  if (stage == 3 && draw.chance(40)) add(words, {"--gather-for", draw.one_of({"auto", "pass", "1", "2", "step"})});
  return words;
}

class Runs {
 public:
  explicit Runs(std::string scratch) : scratch_(std::move(scratch)) {
    std::ofstream(scratch_ + "/data.bytes") << std::string(3000, 'x') << std::string(3000, 'y');
  }
  int accepted() const { return accepted_; }
  int accepted_pipelines() const { return accepted_pipelines_; }

  /// Returns the `done` object of the metrics. If the command rejects the options, expects an error message and returns
  /// null.
  Json run(const Case& drawn, const Words& more) {
    const std::string metrics = scratch_ + "/m.jsonl";
    std::filesystem::remove(metrics);
    Words words{"train", "--steps", "3", "--threads", "1", "--quiet", "--metrics", metrics};
    add(words, drawn.words);
    add(words, more);
    const Words nodes =
        drawn.ranks_per_node > 0 ? Words{"ALIQUOT_RANKS_PER_NODE=" + std::to_string(drawn.ranks_per_node)} : Words{};
    test::CommandResult result;
    const auto pipeline = std::ranges::find(more, "--pipeline");
    const int stages = pipeline == more.end() ? 1 : std::stoi(*std::next(pipeline));
    const std::string ranks = std::to_string(drawn.ranks * stages);
    if (drawn.processes) {
      Words launched{"mpirun", "--oversubscribe", "-n", ranks, test::aliquot_program()};
      add(launched, words);
      result = test::run_program("/usr/bin/env", launched, test::mpirun_environment(nodes));
    } else {
      add(words, {"--ranks", ranks});
      result = test::run_program(test::aliquot_program(), words, nodes);
    }
    std::string line;
    for (const std::string& word : nodes) line += word + " ";
    if (drawn.processes) line += "mpirun -n " + ranks + " ";
    line += "aliquot";
    for (const std::string& word : words) line += " " + word;
    last_line_ = line;
    const bool refused = result.code == 1 || result.code == 2;
    if (refused) {
      EXPECT_NE(result.err.find("aliquot: "), std::string::npos) << line << result.err;
      EXPECT_FALSE(trained(metrics)) << "the run was rejected after its first step: " << line << "\n" << result.err;
      return nullptr;
    }
    EXPECT_EQ(result.code, 0) << line << "\n" << result.err;
    std::ifstream file(metrics);
    Json done;
    for (std::string text; std::getline(file, text);) done = Json::parse(text);
    if (result.code != 0 || !done.contains("done")) return nullptr;
    ++accepted_;
    if (stages > 1) ++accepted_pipelines_;
    expect_as_planned(done["done"]);
    return done["done"];
  }
  /// Like run(), but expects that the command accepts the options, because it accepted equivalent options before.
  Json run_again(const Case& drawn, const Words& more) {
    Json done = run(drawn, more);
    EXPECT_FALSE(done.is_null()) << "rejected, although an equivalent command line was accepted: " << last_line_;
    return done;
  }
  const std::string& last_line() const { return last_line_; }

 private:
  /// True if the metrics contain a step.
  static bool trained(const std::string& metrics) {
    std::ifstream file(metrics);
    for (std::string text; std::getline(file, text);) {
      if (text.starts_with("{\"step\"")) return true;
    }
    return false;
  }
  void expect_as_planned(const Json& done) const {
    EXPECT_EQ(done["planned"], done["measured"]) << last_line_;
    EXPECT_EQ(done["planned_peak"], done["measured_peak"]) << last_line_;
    if (!done.contains("stages")) return;
    for (const Json& stage : done["stages"]) {
      EXPECT_EQ(stage["planned"], stage["measured"]) << last_line_;
      EXPECT_EQ(stage["planned_peak"], stage["measured_peak"]) << last_line_;
    }
  }

  std::string scratch_, last_line_;
  int accepted_ = 0, accepted_pipelines_ = 0;
};

Words joined(Words words, const Words& more) {
  add(words, more);
  return words;
}

/// Expects that a run that stops and resumes ends with the digest and the checkpoint of an uninterrupted run.
void expect_resumes(Runs& runs, const Case& drawn, const Words& free, const std::string& scratch, Draw& draw) {
  const std::string uninterrupted = scratch + "/uninterrupted", split = scratch + "/split";
  const Json one = runs.run_again(drawn, joined(free, {"--checkpoint-dir", uninterrupted, "--save", "blocking"}));
  const Words saves{"--checkpoint-dir", split, "--save", draw.one_of({"blocking", "snapshot"})};
  const std::string stop = std::to_string(1 + draw.below(2));
  const Json half = runs.run_again(drawn, joined(free, joined(saves, {"--stop-after", stop})));
  const Json two = runs.run_again(drawn, joined(free, joined(saves, {"--resume", "auto"})));
  if (!one.is_null() && !half.is_null() && !two.is_null()) {
    EXPECT_EQ(two["digest"], one["digest"]) << runs.last_line();
    const std::string file = "/" + checkpoint_name(3) + "/state.h5";
    EXPECT_TRUE(test::read_file(split + file) == test::read_file(uninterrupted + file)) << runs.last_line();
  }
  std::filesystem::remove_all(uninterrupted);
  std::filesystem::remove_all(split);
}

void run_case(uint64_t seed, Runs& runs, const std::string& scratch) {
  Draw draw(seed);
  const Case drawn = draw_case(draw, test::has_mpi());
  const int stage = drawn.quantized ? 3 : -1;
  const Words free = draw_free(draw, drawn, stage, scratch);
  const Json first = runs.run(drawn, free);
  if (first.is_null()) return;
  const std::string first_line = runs.last_line();
  if (const Json other = runs.run(drawn, draw_free(draw, drawn, stage, scratch)); !other.is_null()) {
    EXPECT_EQ(other["digest"], first["digest"]) << first_line << "\n" << runs.last_line();
  }
  const int64_t budget = first["planned_peak"].get<int64_t>() * (50 + draw.below(60)) / 100;
  if (const Json within = runs.run(drawn, joined(free, {"--memory-budget", std::to_string(budget)}));
      !within.is_null()) {
    EXPECT_LE(within["measured_peak"], budget) << runs.last_line();
    EXPECT_EQ(within["digest"], first["digest"]) << first_line << "\n" << runs.last_line();
  }
  if (!drawn.quantized_gradients && draw.chance(30)) expect_resumes(runs, drawn, free, scratch, draw);
}

TEST(FlagFuzz, AcceptedRunsMatchPlanBudgetAndDigest) {
  uint64_t seed = 1;
  int count = 12;
  if (const char* text = std::getenv("ALIQUOT_FLAG_FUZZ")) std::istringstream(text) >> seed >> count;
  const test::TemporaryDirectory directory;
  const std::string scratch = directory.path();
  Runs runs(scratch);
  int cases = 0;
  for (uint64_t at = seed; at < seed + static_cast<uint64_t>(count); ++at, ++cases) {
    run_case(at, runs, scratch);
    if (testing::Test::HasFailure()) {
      FAIL() << "case with seed " << at << " failed: repeat it with ALIQUOT_FLAG_FUZZ=\"" << at << " 1\"";
    }
  }
  std::printf("%d cases, %d accepted command lines, %d of them with a pipeline\n", cases, runs.accepted(),
              runs.accepted_pipelines());
  EXPECT_GE(runs.accepted(), count) << "too many command lines were rejected for a useful test";
  EXPECT_GE(runs.accepted_pipelines(), count / 4) << "too few pipelines were accepted for a useful test";
}

}  // namespace
}  // namespace aliquot
