#include "tests/apps/options/flag_draw.h"

#include <algorithm>
#include <iterator>

namespace aliquot::test {
namespace {

void draw_model(Draw& draw, Case& drawn) {
  Words& words = drawn.words;
  const int heads = drawn.tensor + draw.below(2), layers = 1 + draw.below(3);
  const bool llama = draw.chance(50);
  add(words, {"--model", llama ? "llama-nano" : "gpt2-nano", "--heads", std::to_string(heads), "--width",
              std::to_string(heads * 2 * (1 + draw.below(9))), "--layers", std::to_string(layers), "--sequence",
              draw.one_of({"4", "8", "17"}), "--micro-batch", draw.one_of({"1", "2"})});
  if (llama) add(words, {"--kv-heads", draw.chance(50) && drawn.tensor == 1 ? "1" : std::to_string(heads)});
  drawn.uses = layers + (llama ? 3 : 4);
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
  if (const int accumulate = 1 + draw.below(5); accumulate > 1) {
    drawn.adds_in_full_gradients = draw.chance(40);
    add(words, {"--accumulate", std::to_string(accumulate), "--accumulate-into",
                drawn.adds_in_full_gradients ? "full" : "shard"});
  }
}

/// Draws the size of tensor groups. A tensor group needs at least one head per rank: see draw_model().
void draw_tensor(Draw& draw, Case& drawn) {
  if (!draw.chance(35)) return;
  drawn.tensor = draw.chance(80) ? 2 : 3;
  drawn.ranks = std::min(drawn.ranks, 2);
  add(drawn.words, {"--tensor", std::to_string(drawn.tensor)});
  if (draw.chance(40)) add(drawn.words, {"--sequence-parallel"});
}

/// Decides which runs of a case have a pipeline. By default, some of them have one. If a pipeline may change the
/// digest, either all runs have one, or none has. In a tied model that accumulates full gradients, a pipeline changes
/// the digest. With quantized gradients, a pipeline may change the digest if pipeline stages share a node.
void draw_pipelined(Draw& draw, Case& drawn) {
  if (drawn.tied && drawn.adds_in_full_gradients)
    drawn.pipelined = draw.chance(60) ? Pipelined::kAlways : Pipelined::kNever;
  if (drawn.quantized_gradients && drawn.ranks * drawn.tensor % drawn.ranks_per_node != 0)
    drawn.pipelined = Pipelined::kNever;
}

/// Returns a random value of --pipeline-cut: the number of uses of each of `count` virtual stages. The command rejects
/// some of these values.
std::string draw_cut(Draw& draw, int uses, int count) {
  std::vector<int> counts(static_cast<std::size_t>(count), 1);
  for (int left = uses - count; left > 0; --left) ++counts[static_cast<std::size_t>(draw.below(count))];
  std::string text;
  for (const int each : counts) text += (text.empty() ? "" : ",") + std::to_string(each);
  return text;
}

Words draw_pipeline(Draw& draw, const Case& drawn) {
  const bool pipelined =
      drawn.pipelined == Pipelined::kAlways || (drawn.pipelined == Pipelined::kSometimes && draw.chance(55));
  if (!pipelined) return {};
  const int most = std::clamp(8 / (drawn.ranks * drawn.tensor), 2, 4), stages = 2 + draw.below(most - 1);
  Words words{"--pipeline", std::to_string(stages)};
  int virtual_stages = 1;
  if (draw.chance(70)) {
    const std::string order = draw.one_of({"gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble", "auto"});
    add(words, {"--pipeline-schedule", order});
    if (order == "interleaved") virtual_stages = 2;
    if ((order == "interleaved" || order == "auto") && draw.chance(30)) {
      virtual_stages = 2 + draw.below(2);
      add(words, {"--virtual-stages", std::to_string(virtual_stages)});
    }
  }
  if (draw.chance(35)) add(words, {"--pipeline-cut", draw_cut(draw, drawn.uses, stages * virtual_stages)});
  return words;
}

Words draw_offload(Draw& draw, int stage, const std::string& scratch) {
  Words words;
  const std::string disk = "disk:" + scratch;
  if (draw.chance(35)) add(words, {"--offload", draw.chance(50) ? "host" : disk});
  if (stage == 3 && draw.chance(25)) add(words, {"--offload-parameters", draw.chance(50) ? "host" : disk});
  return words;
}

}  // namespace

void add(Words& words, const Words& more) { words.insert(words.end(), more.begin(), more.end()); }

Words joined(Words words, const Words& more) {
  add(words, more);
  return words;
}

Case draw_case(Draw& draw, bool has_mpi) {
  Case drawn;
  drawn.ranks = 1 + draw.below(4);
  drawn.processes = has_mpi && draw.chance(25);
  if (draw.chance(drawn.processes ? 60 : 15)) drawn.ranks_per_node = 1 + draw.below(3);
  draw_tensor(draw, drawn);
  draw_model(draw, drawn);
  draw_numbers(draw, drawn);
  drawn.lora = draw.chance(15);
  if (drawn.lora) add(drawn.words, {"--lora", "rank=2,targets=" + draw.one_of({"all-linear", "o,up", "down"})});
  if (draw.chance(25) && drawn.ranks > 1) {
    const bool halves = drawn.ranks == 4 && draw.chance(70);
    add(drawn.words, {"--replicas", halves ? "2" : std::to_string(drawn.ranks)});
  }
  if (draw.chance(15)) add(drawn.words, {"--reproducible"});
  if (drawn.ranks > 1 && drawn.ranks_per_node > 0 && draw.chance(40)) {
    const std::string what = draw.one_of({"weights", "gradients", "both"});
    drawn.quantized_weights = what != "gradients";
    drawn.quantized_gradients = what != "weights";
    add(drawn.words, {"--quantize", what});
  }
  draw_pipelined(draw, drawn);
  return drawn;
}

Words draw_free(Draw& draw, const Case& drawn, int stage, const std::string& scratch) {
  if (stage < 0) stage = draw.chance(40) ? 3 : draw.below(4);
  Words words{"--zero-stage",    std::to_string(stage),
              "--prefetch",      std::to_string(draw.below(4)),
              "--keep-gathered", std::to_string(draw.below(3)),
              "--recompute",     draw.one_of({"none", "block", "1", "2", "auto"}),
              "--gather",        draw.one_of({"auto", "auto", "copy", "copy", "view"}),
              "--master",        draw.one_of({"split", "fp32"}),
              "--threads",       draw.one_of({"1", "1", "1", "2"})};
  add(words, draw_offload(draw, stage, scratch));
  if (drawn.unclipped && !drawn.half && draw.chance(40)) add(words, {"--update-in-backward"});
  if (stage < 3 && drawn.ranks > 1 && draw.chance(40)) add(words, {"--check-every", "1"});
  if (draw.chance(25)) add(words, {"--eval-data", scratch + "/data.bytes", "--eval-every", "2"});
  if (draw.chance(15)) add(words, {"--digest-every", "1"});
  if (draw.chance(15)) add(words, {"--trace", scratch + "/trace.json"});
  add(words, draw_pipeline(draw, drawn));
  if (stage == 3 && draw.chance(40)) add(words, {"--gather-for", draw.one_of({"auto", "pass", "1", "2", "step"})});
  if (draw.chance(20)) add(words, {"--check-state"});
  if (draw.chance(10)) add(words, {"--graph", draw.one_of({"auto", "off"})});
  if (drawn.ranks > 1 && draw.chance(20)) add(words, {"--replay-every", draw.one_of({"1", "2"})});
  return words;
}

}  // namespace aliquot::test
