// The reader of DeepSpeed configurations, given any bytes.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include "apps/options/deepspeed.h"
#include "kernels/error.h"
#include "tests/support/fuzz_target.h"

namespace aliquot::test {
namespace {

/// A file of this process, in memory where the system has such a place, gone with it.
class InputFile {
 public:
  InputFile() {
    const std::filesystem::path memory = "/dev/shm";
    const auto folder = std::filesystem::exists(memory) ? memory : std::filesystem::temp_directory_path();
    path_ = folder / ("aliquot-fuzz-deepspeed-" + std::to_string(::getpid()) + ".json");
  }
  ~InputFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& write(std::string_view bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_;
  }

 private:
  std::filesystem::path path_;
};

void run_deepspeed(std::string_view input) {
  static const InputFile file;
  const std::string path = file.write(input);
  try {
    TrainOptions options;
    for (const std::string& key : take_deepspeed_file(options, path)) require(!key.empty(), "a key without a name");
    TrainOptions again;
    take_deepspeed_file(again, path);
    require(again.zero_stage == options.zero_stage && again.clip == options.clip, "the same file says two things");
  } catch (const UsageError& error) {
    const std::string_view sentence = error.what();
    require(sentence.find(path) != std::string_view::npos, "an error that does not name the file");
    require(sentence.size() < 20'000 + input.size(), "an error without an end");
  }
}

std::vector<std::string> deepspeed_seeds() {
  return {
      R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,)"
      R"( "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},)"
      R"( "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": 100}},)"
      R"( "gradient_clipping": 1.0, "zero_optimization": {"stage": 3, "overlap_comm": true}, "bf16": {"enabled": true}})",
      R"({"fp16": {"enabled": true, "initial_scale_power": 16, "loss_scale_window": 500, "hysteresis": 2},)"
      R"( "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "steps_per_print": 10})",
      R"({"zero_optimization": true, "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": null})",
      "{} // nothing"};
}

}  // namespace

std::span<const FuzzTarget> fuzz_targets() {
  static const std::vector<FuzzTarget> targets{
      {"deepspeed",
       run_deepspeed,
       deepspeed_seeds,
       {"\"zero_optimization\":{", "\"stage\":", "\"optimizer\":{\"type\":\"", "\"params\":{", "\"enabled\":true",
        "\"auto\"", "null", "1e999", "-9223372036854775809", "[[[[", "{\"a\":{\"a\":", "\\ud800", "/*", "NaN"}}};
  return targets;
}

}  // namespace aliquot::test
