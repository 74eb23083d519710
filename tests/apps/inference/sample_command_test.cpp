// Runs aliquot sample, and aliquot train with --sample-every.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/apps/inference/support.h"

namespace aliquot::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class SampleCommand : public InferenceTest {};

TEST_F(SampleCommand, EveryShardingGivesTheSameText) {
  train("run");
  const std::string sample = "sample --threads 1 --tokens 40 --checkpoint " + at("run") + " ";
  const std::string text = output_of(sample, {"--prompt", "the old "});
  EXPECT_THAT(text, StartsWith("the old "));
  EXPECT_EQ(text.back(), '\n');
  for (const char* ranks :
       {"--ranks 2", "--ranks 3 --zero-stage 3", "--ranks 2 --zero-stage 0", "--ranks 2 --pipeline 2",
        "--ranks 4 --replicas 2", "--threads 2", "--offload-parameters host --ranks 2", "--ranks 2 --tensor 2",
        "--ranks 4 --tensor 2", "--ranks 4 --tensor 4 --zero-stage 0", "--ranks 4 --tensor 2 --pipeline 2",
        "--ranks 3 --tensor 3"})
    EXPECT_EQ(output_of(sample + ranks, {"--prompt", "the old "}), text) << ranks;
  if (!has_mpi()) return;
  std::vector<std::string> words = words_of(sample);
  words.insert(words.end(), {"--prompt", "the old "});
  const CommandResult launched = run_aliquot_under_mpirun(2, words);
  EXPECT_EQ(launched.code, 0) << launched.err;
  EXPECT_EQ(launched.out, text);
}

TEST_F(SampleCommand, TheSeedDeterminesTheText) {
  train("run");
  const std::string sample = "sample --threads 1 --prompt a --checkpoint " + at("run") + " --tokens 50 ";
  std::set<std::string> texts;
  for (const char* seed : {"1", "2", "3"}) texts.insert(output_of(sample + "--seed " + seed));
  EXPECT_EQ(texts.size(), 3u);
  EXPECT_TRUE(texts.contains(output_of(sample)));  // the default seed is 1
  const std::string greedy = output_of(sample + "--temperature 0");
  EXPECT_EQ(output_of(sample + "--temperature 0 --seed 5"), greedy);
  EXPECT_EQ(output_of(sample + "--top-k 1 --temperature 3"), greedy);
  EXPECT_EQ(output_of(sample + "--top-p 1e-6 --temperature 0.1"), greedy);
}

/// The prompt, one token at a time, gives the same text as the prompt at once: the rest of a text is the same if a part
/// of it becomes the prompt.
TEST_F(SampleCommand, ALongerPromptContinuesTheSameText) {
  train("run");
  const std::string sample = "sample --threads 1 --temperature 0 --checkpoint " + at("run") + " ";
  const std::string numbers = output_of(sample + "--tokens 40 --prompt-tokens 116,104,101");
  std::istringstream all(numbers);
  std::vector<std::string> tokens{std::istream_iterator<std::string>(all), {}};
  ASSERT_EQ(tokens.size(), 43u);
  std::string prompt = tokens[0];
  for (size_t i = 1; i < 30; ++i) prompt += "," + tokens[i];
  EXPECT_EQ(output_of(sample + "--tokens 13 --prompt-tokens " + prompt), numbers);
  EXPECT_THAT(output_of(sample + "--tokens 40 --prompt the"), StartsWith("the"));
}

TEST_F(SampleCommand, EachOfSeveralPromptsIsContinuedAsAlone) {
  train("run");
  const std::string sample = "sample --threads 1 --tokens 30 --checkpoint " + at("run");
  const auto text = [&](const std::string& prompt) { return output_of(sample, {"--prompt", prompt}); };
  const std::vector<std::string> prompts{"--prompt", "the old ", "--prompt", "a", "--prompt", "the old "};
  const std::string expected = "[1/3]\n" + text("the old ") + "[2/3]\n" + text("a") + "[3/3]\n" + text("the old ");
  EXPECT_EQ(output_of(sample, prompts), expected);
  EXPECT_EQ(output_of(sample + " --ranks 2 --tensor 2", prompts), expected);
  const std::string first = output_of(sample + " --prompt-tokens 1,2,3"),
                    second = output_of(sample + " --prompt-tokens 9");
  EXPECT_EQ(output_of(sample + " --prompt-tokens 1,2,3 --prompt-tokens 9"), first + second);
  // The prompts of the command line replace those of a configuration file.
  write_file(at("config"), "prompt = the old\nprompt = a\n");
  EXPECT_EQ(output_of(sample + " --config " + at("config")), "[1/2]\n" + text("the old") + "[2/2]\n" + text("a"));
  EXPECT_EQ(output_of(sample + " --prompt a --config " + at("config")), text("a"));
  EXPECT_EQ(output_of(sample + " --prompt-tokens 9 --config " + at("config")), second);
}

TEST_F(SampleCommand, StopsAtTheContextWithAMessage) {
  train("run");
  const CommandResult result =
      run("sample --threads 1 --checkpoint " + at("run") + " --tokens 500 --prompt-tokens 1,2,3,4");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("the model's context has 64 tokens"));
  std::istringstream all(result.out);
  EXPECT_EQ(std::distance(std::istream_iterator<std::string>(all), {}), 64);
  expect_refusal("sample --checkpoint " + at("run") + " --prompt " + std::string(64, 'a'), "use a shorter prompt");
}

TEST_F(SampleCommand, ReadsExportsAndAllPrecisions) {
  train("run");
  output_of("checkpoint export " + at("run") + " --out " + at("hf"));
  EXPECT_TRUE(std::filesystem::exists(at("hf/tokenizer.json")));
  const std::string common = " --threads 1 --prompt the --temperature 0 --tokens 30 ";
  const std::string text = output_of("sample --checkpoint " + at("run") + common);
  EXPECT_EQ(output_of("sample --init " + at("hf") + common), text);
  EXPECT_EQ(output_of("sample --init " + at("hf/model.safetensors") + common), text);
  EXPECT_EQ(output_of("sample --checkpoint " + at("run/step-00000030") + common), text);
  for (const char* precision : {"bf16", "fp16"})
    EXPECT_THAT(output_of("sample --init " + at("hf") + common + "--precision " + precision), StartsWith("the"));
  output_of("checkpoint import " + at("hf") + " --out " + at("in"));
  EXPECT_EQ(output_of("sample --checkpoint " + at("in") + common), text);
}

TEST_F(SampleCommand, StopsAtTheEndOfText) {
  train("run");
  output_of("checkpoint export " + at("run") + " --out " + at("hf"));
  const std::string sample = "sample --threads 1 --temperature 0 --tokens 40 --prompt the --init " + at("hf") + " ";
  const std::string text = output_of(sample);
  ASSERT_GT(text.size(), 20u);
  // The model stops before the first character that config.json calls the end of a text.
  const char end = text[10];
  auto config = nlohmann::ordered_json::parse(read_file(at("hf/config.json")));
  config["eos_token_id"] = {300, static_cast<int>(static_cast<unsigned char>(end))};
  write_file(at("hf/config.json"), config.dump());
  EXPECT_EQ(output_of(sample), text.substr(0, text.find(end, 3)) + "\n");
  EXPECT_EQ(output_of(sample + "--stop none"), text);
  const char other = text[12];
  if (other != ' ') {
    EXPECT_EQ(output_of(sample + "--stop " + std::string(1, other)), text.substr(0, text.find(other, 3)) + "\n");
  }
}

/// transformers stops at eos_token_id, and knows no other end of a text.
TEST_F(SampleCommand, ExportsNameTheEndOfText) {
  write_file(at("text.txt"), "the old man and the old sea and the man");
  output_of("data " + at("text.txt") + " --learn-tokenizer 270 --out " + at("t.h5"));
  output_of(
      "train --quiet --layers 1 --width 16 --heads 2 --context 16 --threads 1 --micro-batch 1 --steps 1 --vocab 270 "
      "--data " +
      at("t.h5") + " --sequence 8 --checkpoint-dir " + at("own"));
  output_of("checkpoint export " + at("own") + " --out " + at("own-hf"));
  const auto config = nlohmann::json::parse(read_file(at("own-hf/config.json")));
  const auto tokenizer = nlohmann::json::parse(read_file(at("own-hf/tokenizer.json")));
  EXPECT_EQ(config.at("eos_token_id"), tokenizer.at("added_tokens").at(0).at("id"));
  EXPECT_EQ(tokenizer.at("added_tokens").at(0).at("content"), "<|endoftext|>");
}

/// A vocabulary may have the size of GPT-2's or Llama 3's without their tokens.
TEST_F(SampleCommand, ExportsNameTheTokensOfTheirOwnTokenizer) {
  write_file(at("text.txt"), "the old man and the old sea and the man");
  output_of("data " + at("text.txt") + " --learn-tokenizer 260 --out " + at("t.h5"));
  const std::string small = " --layers 1 --width 16 --hidden 16 --context 16 --sequence 8 --micro-batch 1 --steps 1 ";
  const std::string rest = " --threads 1 --quiet --data " + at("t.h5") + " --checkpoint-dir ";
  const auto exported = [&](const std::string& name, const std::string& more = "") {
    output_of("checkpoint export " + at(name) + more + " --out " + at(name + "-hf"));
    return nlohmann::json::parse(read_file(at(name + "-hf/config.json")));
  };
  output_of("train --vocab 50257 --heads 2" + small + rest + at("gpt2"));
  const auto gpt2 = exported("gpt2");
  EXPECT_EQ(gpt2.at("eos_token_id"), 259);
  EXPECT_EQ(gpt2.at("bos_token_id"), 259);
  output_of("train --model llama-nano --vocab 128256 --heads 2 --kv-heads 2" + small + rest + at("llama"));
  const auto llama = exported("llama");
  EXPECT_EQ(llama.at("eos_token_id"), 259);
  EXPECT_EQ(llama.at("bos_token_id"), nullptr);

  // Merged adapters keep what the config.json of the base says. A base that is a checkpoint has no config.json.
  auto base = gpt2;
  base["eos_token_id"] = 7;
  write_file(at("gpt2-hf/config.json"), base.dump());
  const std::string tune = " --lora rank=2,alpha=2 --sequence 8 --micro-batch 1 --steps 1" + rest;
  output_of("train --init " + at("gpt2-hf") + tune + at("tuned"));
  EXPECT_EQ(exported("tuned", " --lora merged").at("eos_token_id"), 7);
  output_of("train --init " + at("gpt2") + tune + at("again"));
  EXPECT_EQ(exported("again", " --lora merged").at("eos_token_id"), 259);

  // Without a tokenizer, the size of the vocabulary is the only indication of the tokens.
  std::filesystem::remove(at("gpt2/tokenizer.json"));
  std::filesystem::remove_all(at("gpt2-hf"));
  EXPECT_EQ(exported("gpt2").at("eos_token_id"), 50256);
}

TEST_F(SampleCommand, RefusesWhatCannotBeSampled) {
  train("run");
  const std::string checkpoint = "sample --checkpoint " + at("run");
  expect_refusal("sample --prompt a", "either --init or --checkpoint");
  expect_refusal("sample --init x --checkpoint y", "either --init or --checkpoint");
  expect_refusal("sample --checkpoint " + at("nothing") + " --prompt a",
                 "--checkpoint " + at("nothing") + ": expected a folder with safetensors weights, or a checkpoint");
  expect_refusal(checkpoint + " --prompt a --prompt-tokens 1", "cannot be combined");
  expect_refusal(checkpoint + " --prompt-tokens 1,", "it ends with a comma");
  expect_refusal(checkpoint + " --prompt-tokens 256", "token 256 is not in the model's vocabulary of 256 tokens");
  expect_refusal(checkpoint + " --prompt a --stop nothing", "--stop nothing: the tokenizer has no such token");
  expect_refusal(checkpoint, "--prompt is missing");
  expect_refusal(checkpoint + " --prompt \xff", "--prompt is not valid UTF-8");
  expect_refusal(checkpoint + " --prompt a --temperature -1", "--temperature");
  std::filesystem::remove(at("run/tokenizer.json"));
  expect_refusal(checkpoint + " --prompt a", "has no tokenizer.json: give --tokenizer FILE");
}

TEST_F(SampleCommand, TrainingPrintsSamples) {
  const auto train_with = [&](const std::string& more) {
    return run(
        "train --layers 2 --width 32 --heads 4 --vocab 256 --context 64 --sequence 16 --micro-batch 2 --steps 6 "
        "--threads 1 " +
        more);
  };
  const CommandResult plain = train_with("");
  const std::string digest = plain.out.substr(plain.out.find("\ndigest "));
  for (const char* mesh : {"", "--ranks 2 --zero-stage 3", "--ranks 2 --pipeline 2 --accumulate 2", "--precision bf16",
                           "--ranks 4 --tensor 2 --zero-stage 3", "--mesh 2x1x1x2 --sequence-parallel off"}) {
    const CommandResult sampled =
        train_with(std::string("--sample-every 4 --sample-prompt the --sample-tokens 30 ") + mesh);
    ASSERT_EQ(sampled.code, 0) << sampled.err;
    EXPECT_THAT(sampled.out, HasSubstr("\nstep 4 sample: the"));
    EXPECT_THAT(sampled.out, testing::Not(HasSubstr("step 6 sample")));
    EXPECT_THAT(sampled.out, HasSubstr("agree to the byte")) << mesh;
    if (*mesh == '\0') {
      EXPECT_EQ(sampled.out.substr(sampled.out.find("\ndigest ")), digest);
    }
  }
  expect_refusal("train --sample-every 4", "--sample-every needs --sample-prompt");
  expect_refusal("train --sample-prompt a", "--sample-prompt needs --sample-every");
  std::ofstream(at("d.u16")) << std::string(4000, '\0');
  expect_refusal("train --sample-every 4 --sample-prompt a --data " + at("d.u16"), "give --tokenizer FILE");
}

/// All models of a family, in fp32 and with every way in which ranks divide a model, choose the same tokens. With a
/// learning rate of 0, the samples during training are those of the initial weights.
TEST_F(SampleCommand, TensorGroupsGiveTheSamplesOfOneRank) {
  for (const char* model : {"--layers 2 --width 32 --heads 4", "--model llama-nano --layers 2"}) {
    const auto sample_of = [&](const std::string& more) {
      const std::string out = output_of(std::string("train --vocab 256 --context 64 --sequence 16 --micro-batch 2 "
                                                    "--steps 1 --lr 0 --weight-decay 0 --threads 1 --sample-every 1 "
                                                    "--sample-prompt the --sample-tokens 40 --sample-temperature 0 ") +
                                        model + " " + more);
      const size_t begin = out.find("step 1 sample: ");
      return out.substr(begin, out.find('\n', begin) - begin);
    };
    const std::string one = sample_of("");
    EXPECT_GT(one.size(), 20u);
    for (const char* mesh : {"--ranks 2 --tensor 2", "--ranks 2 --tensor 2 --sequence-parallel off",
                             "--ranks 4 --tensor 4 --micro-batch 1", "--ranks 4 --tensor 2 --zero-stage 3",
                             "--ranks 4 --mesh 2x1x1x2 --accumulate 2", "--ranks 2 --tensor 2 --reproducible"})
      EXPECT_EQ(sample_of(mesh), one) << model << " " << mesh;
  }
}

TEST_F(SampleCommand, CheckpointsHaveTheTokenizerOfTheData) {
  std::ofstream(at("text.txt")) << std::string(500, 'a') + std::string(500, 'b');
  std::string vocabulary;
  for (int i = 0; i < 26; ++i)
    vocabulary +=
        std::string("\"") + static_cast<char>('a' + i) + "\": " + std::to_string(25 - i) + (i < 25 ? "," : "");
  std::ofstream(at("letters.json")) << R"({"model": {"type": "BPE", "vocab": {)" + vocabulary + R"(}, "merges": []},
      "decoder": {"type": "Fuse"}})";
  output_of("data " + at("text.txt") + " --separator none --tokenizer " + at("letters.json") + " --out " + at("t.h5"));
  train("run", "--data " + at("t.h5"));
  EXPECT_EQ(read_file(at("run/tokenizer.json")), read_file(at("letters.json")));
  EXPECT_EQ(output_of("sample --threads 1 --temperature 0 --tokens 5 --prompt bbbb --checkpoint " + at("run")),
            "bbbbbbbbb\n");
}

}  // namespace
}  // namespace aliquot::test
