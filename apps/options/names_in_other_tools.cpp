#include "apps/options/names_in_other_tools.h"

#include <algorithm>
#include <array>
#include <vector>

namespace aliquot {
namespace {

struct OtherName {
  std::string_view given;
  std::string_view ours;  // options separated by blanks; a table need not have all of them
};

constexpr OtherName kOtherNames[] = {
    // Sharding
    {"stage", "zero-stage stages"},
    {"zero", "zero-stage stages"},
    {"zero-optimization", "zero-stage deepspeed"},
    {"z", "zero-stage stages"},
    {"n", "ranks"},
    {"np", "ranks"},
    {"nproc", "ranks"},
    {"nproc-per-node", "ranks"},
    {"num-gpus", "ranks"},
    {"world-size", "ranks"},
    {"pp", "pipeline"},
    {"pipeline-parallel-size", "pipeline"},
    {"pipeline-model-parallel-size", "pipeline"},
    {"tp", "tensor"},
    {"tensor-parallel-size", "tensor"},
    {"tensor-model-parallel-size", "tensor"},
    // Model
    {"model-name-or-path", "model init models"},
    {"pretrained", "init"},
    {"num-layers", "layers"},
    {"n-layer", "layers"},
    {"hidden-size", "width"},
    {"n-embd", "width"},
    {"d-model", "width"},
    {"num-attention-heads", "heads"},
    {"n-head", "heads"},
    {"num-key-value-heads", "kv-heads"},
    {"num-query-groups", "kv-heads"},
    {"ffn-hidden-size", "hidden"},
    {"intermediate-size", "hidden"},
    {"max-position-embeddings", "context"},
    {"vocab-size", "vocab learn-tokenizer"},
    {"lora-r", "lora"},
    {"lora-rank", "lora"},
    {"lora-alpha", "lora"},
    {"lora-target-modules", "lora"},
    {"target-modules", "lora"},
    // Data and batch
    {"dataset", "data"},
    {"data-path", "data"},
    {"train-data", "data"},
    {"train-file", "data"},
    {"val-data", "eval-data data"},
    {"valid-data", "eval-data data"},
    {"validation-file", "eval-data data"},
    {"input", "data"},
    {"text-key", "text-field"},
    {"text-column", "text-field"},
    {"json-key", "text-field"},
    {"json-keys", "text-field"},
    {"tokenizer-path", "tokenizer"},
    {"tokenizer-model", "tokenizer"},
    {"tokenizer-name", "tokenizer"},
    {"append-eod", "separator"},
    {"output", "out"},
    {"output-prefix", "out"},
    {"o", "out"},
    {"workers", "threads"},
    {"num-workers", "threads"},
    {"j", "threads"},
    {"eval-interval", "eval-every"},
    {"eval-steps", "eval-every"},
    {"batch-size", "micro-batch global-batch"},
    {"b", "micro-batch global-batch"},
    {"micro-batch-size", "micro-batch"},
    {"per-device-train-batch-size", "micro-batch"},
    {"train-micro-batch-size-per-gpu", "micro-batch"},
    {"global-batch-size", "global-batch"},
    {"train-batch-size", "global-batch"},
    {"gradient-accumulation-steps", "accumulate"},
    {"grad-accum", "accumulate"},
    {"grad-accum-steps", "accumulate"},
    {"seq-len", "sequence"},
    {"seq-length", "sequence"},
    {"sequence-length", "sequence"},
    {"max-seq-len", "sequence"},
    {"max-seq-length", "sequence"},
    {"max-length", "sequence"},
    {"block-size", "sequence"},
    {"t", "sequence"},
    // Steps and optimizer
    {"max-steps", "steps"},
    {"num-steps", "steps"},
    {"total-steps", "steps"},
    {"train-iters", "steps"},
    {"iterations", "steps"},
    {"max-iters", "steps"},
    {"epochs", "steps"},
    {"num-train-epochs", "steps"},
    {"x", "steps"},
    {"optim", "optimizer"},
    {"learning-rate", "lr"},
    {"max-lr", "lr"},
    {"l", "lr"},
    {"min-learning-rate", "min-lr"},
    {"lr-scheduler", "schedule"},
    {"lr-scheduler-type", "schedule"},
    {"lr-decay-style", "schedule"},
    {"warmup-steps", "warmup"},
    {"warmup-iters", "warmup"},
    {"num-warmup-steps", "warmup"},
    {"lr-warmup-iters", "warmup"},
    {"u", "warmup"},
    {"adam-beta1", "betas"},
    {"adam-beta2", "betas"},
    {"beta1", "betas"},
    {"beta2", "betas"},
    {"adam-eps", "eps"},
    {"adam-epsilon", "eps"},
    {"wd", "weight-decay"},
    {"clip-grad", "clip"},
    {"grad-clip", "clip"},
    {"max-grad-norm", "clip"},
    {"gradient-clipping", "clip"},
    // Samples
    {"max-tokens", "tokens"},
    {"max-new-tokens", "tokens"},
    {"num-tokens-to-generate", "tokens"},
    {"n-predict", "tokens"},
    {"temp", "temperature"},
    {"p", "prompt"},
    {"text", "prompt"},
    // Precision and memory
    {"dtype", "precision"},
    {"mixed-precision", "precision"},
    {"bf16", "precision"},
    {"fp16", "precision"},
    {"gpu-memory", "device-memory memory-budget"},
    {"activation-checkpointing", "recompute"},
    {"gradient-checkpointing", "recompute"},
    {"recompute-activations", "recompute"},
    {"cpu-offload", "offload"},
    // Checkpoints and reports
    {"output-dir", "checkpoint-dir out"},
    {"out-dir", "checkpoint-dir out"},
    {"save-dir", "checkpoint-dir"},
    {"save-interval", "checkpoint-every"},
    {"save-steps", "checkpoint-every"},
    {"save-total-limit", "keep"},
    {"load", "resume init"},
    {"resume-from", "resume"},
    {"resume-from-checkpoint", "resume"},
    {"log-interval", "log-every"},
    {"logging-steps", "log-every"},
    {"random-seed", "seed"},
};

}  // namespace

std::string name_in_other_tools(std::string_view given, const OptionTable& table, std::string_view prefix) {
  std::string name(given);
  std::ranges::replace(name, '_', '-');
  const auto found = std::ranges::find(kOtherNames, name, &OtherName::given);
  if (found == std::end(kOtherNames)) return "";
  std::string text;
  for (std::string_view rest = found->ours; !rest.empty();) {
    const std::string_view ours = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(ours.size() + 1, rest.size()));
    if (table.find(ours) == nullptr) continue;
    text += text.empty() ? " Use " : " or ";
    text.append(prefix).append(ours);
  }
  return text.empty() ? text : text + ".";
}

}  // namespace aliquot
