// Runs the commands that train, resume, evaluate, sample and export adapters of LoRA.
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>

#include "checkpoint/save.h"
#include "checkpoint/verify.h"
#include "tests/apps/inference/support.h"

namespace aliquot::test {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kLora = "--lora rank=4,alpha=8,targets=all-linear ";

class LoraCommand : public InferenceTest {
 protected:
  void SetUp() override {
    train("base");
    output_of("checkpoint export " + at("base") + " --out " + at("hf"));
  }
  /// The arguments of a run with adapters on the weights `init`. Every mesh has the same global batch.
  std::string run_of(const std::string& init, const std::string& more) const {
    return "train --init " + at(init) + " " + kLora +
           "--sequence 32 --global-batch 8 --steps 6 --lr 1e-2 --threads 1 --quiet " + more;
  }
  static std::string digest_of(const std::string& out) {
    const size_t found = out.rfind("digest ");
    return found == std::string::npos ? "no digest: " + out : out.substr(found + 7, 64);
  }
  std::vector<double> losses(const std::string& metrics) const {
    std::vector<double> all;
    std::istringstream lines(read_file(at(metrics)));
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line);
      if (json.contains("loss")) all.push_back(json["loss"]);
    }
    return all;
  }
  std::string text_file() const {
    std::string text;
    for (size_t i = 0; i < 900; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 26);
    write_file(at("valid.txt"), text);
    return at("valid.txt");
  }
  std::string loss_line(const std::string& words) const {
    const std::string out = output_of("eval " + words + " --threads 1 --sequence 32 --data " + text_file());
    return out.substr(out.find("loss "));
  }
};

TEST_F(LoraCommand, EveryZeroStageGivesTheBitsOfOneRank) {
  const std::string reproducible = "--reproducible --micro-batch 2 ";
  const std::string one = digest_of(output_of(run_of("hf", reproducible)));
  for (const char* mesh :
       {"--ranks 2 --zero-stage 0", "--ranks 2 --zero-stage 1", "--ranks 2 --zero-stage 2", "--ranks 4 --zero-stage 3",
        "--ranks 4 --zero-stage 3 --replicas 2", "--ranks 2 --zero-stage 3 --recompute block",
        "--ranks 2 --zero-stage 3 --gather copy", "--ranks 2 --pipeline 2",
        "--ranks 2 --pipeline 2 --pipeline-schedule zero-bubble", "--ranks 4 --pipeline 2 --zero-stage 3"})
    EXPECT_EQ(digest_of(output_of(run_of("hf", reproducible + mesh))), one) << mesh;
}

TEST_F(LoraCommand, OffloadAndTensorGroupsGiveTheSameLosses) {
  output_of(run_of("hf", "--micro-batch 8 --metrics " + at("one.jsonl")));
  const std::vector<double> one = losses("one.jsonl");
  ASSERT_EQ(one.size(), 6u);
  EXPECT_LT(one.back(), one.front());
  int count = 0;
  for (const std::string& mesh : {std::string("--ranks 2 --tensor 2 --micro-batch 8"),
                                  std::string("--ranks 2 --tensor 2 --sequence-parallel off --micro-batch 8"),
                                  std::string("--ranks 4 --tensor 2 --pipeline 2 --micro-batch 4"),
                                  "--ranks 2 --zero-stage 3 --micro-batch 4 --offload-parameters disk:" + at(""),
                                  std::string("--ranks 2 --zero-stage 3 --micro-batch 2")}) {
    const std::string name = std::to_string(count++) + ".jsonl";
    output_of(run_of("hf", mesh + " --metrics " + at(name)));
    const std::vector<double> found = losses(name);
    ASSERT_EQ(found.size(), one.size()) << mesh;
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(found[i], one[i], 2e-5 * one[i]) << mesh << ", step " << i;
  }
}

TEST_F(LoraCommand, ACheckpointHoldsOnlyAdaptersAndResumes) {
  const std::string whole = digest_of(output_of(run_of("hf", "--checkpoint-dir " + at("whole"))));
  output_of(
      run_of("hf", "--ranks 2 --micro-batch 4 --stop-after 3 --checkpoint-every 2 --checkpoint-dir " + at("run")));
  const std::string shown = output_of("checkpoint show " + at("run") + " --all-tensors");
  EXPECT_THAT(shown, HasSubstr("parameters/h.0.attn.c_attn.lora_A.weight"));
  EXPECT_THAT(shown, testing::Not(HasSubstr("parameters/h.0.attn.c_attn.weight")));
  EXPECT_THAT(shown, testing::Not(HasSubstr("wte")));
  EXPECT_THAT(shown, HasSubstr("lora_rank"));
  EXPECT_THAT(shown, HasSubstr("base_digest"));
  EXPECT_EQ(digest_of(output_of(run_of("hf", "--resume auto --checkpoint-dir " + at("run")))), whole);
  // The base may have another format and another path: its digest is that of its values.
  EXPECT_EQ(digest_of(output_of(run_of("base", "--resume " + at("run/step-00000003")))), whole);
}

TEST_F(LoraCommand, EvaluatesSamplesAndExportsTheSameModel) {
  output_of(run_of("hf", "--checkpoint-dir " + at("run")));
  output_of("checkpoint export " + at("run") + " --lora merged --out " + at("merged"));
  const std::string merged = loss_line(at("merged"));
  EXPECT_NE(merged, loss_line(at("hf")));
  std::smatch of_merged, of_adapters;
  const std::regex loss(R"(loss (\S+), )");
  for (const std::string& more : {std::string(""), " --base " + at("hf"), " --base " + at("base"),
                                  std::string(" --ranks 2 --tensor 2"), std::string(" --ranks 2 --pipeline 2")}) {
    const std::string line = loss_line(at("run") + more);
    ASSERT_TRUE(std::regex_search(merged, of_merged, loss));
    ASSERT_TRUE(std::regex_search(line, of_adapters, loss));
    EXPECT_NEAR(std::stod(of_adapters[1]), std::stod(of_merged[1]), 2e-6) << more;
  }
  const std::string prompt = " --prompt-tokens 5,7,9 --tokens 20 --temperature 0 --threads 1";
  const std::string text = output_of("sample --init " + at("merged") + prompt);
  EXPECT_EQ(output_of("sample --checkpoint " + at("run") + prompt), text);
  EXPECT_EQ(output_of("sample --checkpoint " + at("run") + " --base " + at("base") + " --ranks 2" + prompt), text);
  // The merged weights are a model like any other.
  output_of("train --init " + at("merged") + " --sequence 32 --steps 1 --threads 1 --quiet");
}

TEST_F(LoraCommand, ExportsTheFormatOfPeft) {
  output_of(run_of("hf", "--checkpoint-dir " + at("run")));
  output_of("checkpoint export " + at("run") + " --lora adapter --out " + at("peft"));
  const Json config = Json::parse(read_file(at("peft/adapter_config.json")));
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 8);
  EXPECT_EQ(config["fan_in_fan_out"], true);
  EXPECT_EQ(config["target_modules"], (Json{"c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"}));
  EXPECT_EQ(config["base_model_name_or_path"], at("hf"));
  const std::string weights = read_file(at("peft/adapter_model.safetensors"));
  EXPECT_THAT(weights, HasSubstr("base_model.model.transformer.h.1.mlp.c_proj.lora_B.weight"));
  EXPECT_FALSE(std::filesystem::exists(at("peft/config.json")));
}

TEST_F(LoraCommand, RefusesAnotherBaseAndOtherAdapters) {
  output_of(run_of("hf", "--checkpoint-dir " + at("run")));
  train("other", "--seed 2");
  const std::string of_other = "has adapters of other weights than " + at("other");
  expect_refusal(run_of("other", "--resume auto --steps 7 --checkpoint-dir " + at("run")), of_other);
  expect_refusal("checkpoint export " + at("run") + " --lora merged --base " + at("other") + " --out " + at("x"),
                 of_other);
  expect_refusal("eval " + at("run") + " --base " + at("other") + " --threads 1 --data " + text_file(), of_other);
  expect_refusal("checkpoint export " + at("run") + " --out " + at("x"),
                 "contains only adapters of " + at("hf") + ": give --lora merged");
  expect_refusal("checkpoint export " + at("base") + " --lora merged --out " + at("x"), "leave out --lora and --base");
  expect_refusal("eval " + at("base") + " --base " + at("hf") + " --data " + text_file(), "leave --base out");
  expect_refusal("train --init " + at("run") + " --steps 1", "contains only adapters");
  expect_refusal("train --resume " + at("run") + " --steps 7 --layers 2 --width 32",
                 "was saved with --lora rank=4,alpha=8,targets=all-linear, and this run has no --lora");
  expect_refusal(
      "train --init " + at("hf") + " --lora rank=4,alpha=9 --resume auto --steps 7 --checkpoint-dir " + at("run"),
      "this run has --lora rank=4,alpha=9");
  expect_refusal("train --init " + at("hf") + " --lora rank=4 --resume " + at("base"), "has no adapters");
  expect_refusal("train --lora rank=4 --checkpoint-dir " + at("y"), "give --init");
  expect_refusal("train --lora rank=4,targets=q_proj --steps 1", "invalid target 'q_proj'");
  for (const std::string command : {"train --steps 1", "plan"})
    expect_refusal(command + " --lora rank=4 --ranks 2 --tensor 2 --reproducible",
                   "--lora with --tensor cannot be combined with --reproducible");
  expect_refusal("plan --params 1b --lora rank=4", "--lora needs the layers of a model");
  std::filesystem::remove_all(at("hf"));
  expect_refusal("eval " + at("run") + " --data " + text_file(), "name them with --base DIR");
}

/// If the newest checkpoint is damaged, a run resumes from an older one, which must have the same adapters too.
TEST_F(LoraCommand, RefusesOtherAdaptersInAnOlderCheckpoint) {
  output_of(run_of("hf", "--checkpoint-every 2 --checkpoint-dir " + at("run")));
  write_file(at("run/step-00000006/manifest.json"), "{");
  const std::string other = std::regex_replace(run_of("hf", "--resume auto --checkpoint-dir " + at("run")),
                                               std::regex("alpha=8"), "alpha=32");
  expect_refusal(other, "was saved with --lora");
}

/// The digest of the base does not cover its config.json.
TEST_F(LoraCommand, RefusesABaseOfAnotherShape) {
  output_of(run_of("hf", "--checkpoint-dir " + at("run")));
  std::filesystem::copy(at("hf"), at("other"), std::filesystem::copy_options::recursive);
  Json config = Json::parse(read_file(at("other/config.json")));
  config["layer_norm_epsilon"] = 0.01;
  write_file(at("other/config.json"), config.dump());
  const std::string base = at("run") + " --base " + at("other");
  expect_refusal("eval " + base + " --threads 1 --sequence 32 --data " + text_file(), "saved with a different model");
  expect_refusal("checkpoint export " + base + " --lora merged --out " + at("merged"),
                 "has adapters of a model with norm_epsilon");
}

/// Without a config.json, the base has the sizes, and the checkpoint of the adapters records the rest.
TEST_F(LoraCommand, NeedsNoModelForABaseWithoutConfig) {
  output_of(run_of("hf", "--checkpoint-dir " + at("run")));
  output_of("checkpoint export " + at("run") + " --lora merged --out " + at("merged"));
  const std::string loss = loss_line(at("run"));
  const std::string prompt = " --prompt-tokens 5,7,9 --tokens 20 --temperature 0 --threads 1";
  const std::string text = output_of("sample --checkpoint " + at("run") + prompt);
  std::filesystem::rename(at("hf/config.json"), at("config.json"));
  output_of("checkpoint import " + at("hf") + " --out " + at("imported"));  // does not record its heads
  for (const std::string& base : {std::string(""), " --base " + at("hf"), " --base " + at("imported")}) {
    EXPECT_EQ(loss_line(at("run") + base), loss) << base;
    EXPECT_EQ(output_of("sample --checkpoint " + at("run") + base + prompt), text) << base;
    std::filesystem::remove_all(at("again"));
    output_of("checkpoint export " + at("run") + base + " --lora merged --out " + at("again"));
    EXPECT_EQ(read_file(at("again/model.safetensors")), read_file(at("merged/model.safetensors"))) << base;
    EXPECT_EQ(Json::parse(read_file(at("again/config.json")))["n_head"], 4) << base;
  }
}

TEST_F(LoraCommand, RecordsTheCheckpointFromWhichItStarted) {
  output_of(run_of("base", "--checkpoint-dir " + at("run")));
  EXPECT_THAT(output_of("checkpoint show " + at("run")), HasSubstr("base = " + at("base/step-00000030")));
  const std::string loss = loss_line(at("run"));
  train("base", "--steps 40 --resume auto");
  EXPECT_EQ(loss_line(at("run")), loss);
  output_of(run_of("base/step-00000030", "--resume auto --steps 7 --checkpoint-dir " + at("run")));
  expect_refusal(run_of("base", "--resume auto --steps 8 --checkpoint-dir " + at("run")),
                 "has adapters of other weights than " + at("base"));
}

TEST_F(LoraCommand, ComparesTheBaseOfAnAdapterExport) {
  output_of(run_of("hf", "--checkpoint-dir " + at("run")));
  train("other", "--seed 2");
  const std::string command = "checkpoint export " + at("run") + " --lora adapter --out " + at("peft") + " --base ";
  expect_refusal(command + at("other"), "has adapters of other weights than " + at("other"));
  expect_refusal(command + at("nothing"), "there are no weights at " + at("nothing"));
  EXPECT_FALSE(std::filesystem::exists(at("peft/adapter_config.json")));
  output_of(command + at("base"));
}

TEST_F(LoraCommand, WarnsOfAdaptersOfRandomWeights) {
  const std::string words = "train --layers 2 --width 32 --heads 4 --steps 1 --threads 1 --quiet ";
  EXPECT_THAT(run(words + "--lora rank=4").err, HasSubstr("--lora without --init trains adapters of random weights"));
  EXPECT_EQ(run(words).err, "");
  EXPECT_EQ(run(run_of("hf", "")).err, "");
}

TEST_F(LoraCommand, RefusesAdaptersOfPeftInPlaceOfWeights) {
  output_of(run_of("hf", "--checkpoint-dir " + at("run")));
  output_of("checkpoint export " + at("run") + " --lora adapter --out " + at("peft"));
  const std::string data = " --threads 1 --data " + text_file();
  for (const std::string& words :
       {"eval " + at("peft") + data, "sample --init " + at("peft") + " --prompt a",
        "sample --init " + at("peft/adapter_model.safetensors") + " --prompt a", "train --init " + at("peft"),
        "eval " + at("run") + " --base " + at("peft") + data, "checkpoint show " + at("peft"),
        "checkpoint import " + at("peft") + " --out " + at("x"), "train --resume " + at("peft"),
        "checkpoint export " + at("run") + " --lora merged --base " + at("peft") + " --out " + at("x")})
    expect_refusal(words, "adapters in the format of PEFT, not the weights of a model: merge them");
}

TEST_F(LoraCommand, RefusesAnOptionWithAFieldTwice) {
  for (const char* words : {"rank=4,rank=8", "targets=q,rank=4,targets=v", "alpha=1,alpha=1"})
    expect_refusal(std::string("train --lora ") + words, "is given twice");
}

/// Checkpoints whose manifests are valid, but whose scalars or tensors are not those of adapters.
class ForgedAdapters : public LoraCommand {
 protected:
  void SetUp() override {
    LoraCommand::SetUp();
    output_of(run_of("hf", "--checkpoint-dir " + at("run")));
    const Manifest manifest = read_manifest(at("run/step-00000006"));
    scalars_ = manifest.scalars;
    for (const TensorEntry& tensor : manifest.tensors) {
      if (tensor.path.starts_with("parameters/")) tensors_.push_back({tensor.path, tensor.shape, tensor.dtype});
    }
  }
  TestTensor& tensor(const std::string& name) {
    for (TestTensor& one : tensors_) {
      if (one.path == "parameters/" + name) return one;
    }
    throw std::runtime_error("no tensor " + name);
  }
  /// Saves a checkpoint of scalars_ and tensors_. Expects that each command refuses it with `sentence`.
  void expect_refusals(const std::string& sentence) {
    const std::string path = at("forged" + std::to_string(count_++));
    const auto failures = on_ranks(1, [&](Communicator& communicator) {
      Shard shard(tensors_, 1, 0, Partition::kBlocks, 1);
      shard.fill(1);
      shard.state().step = 6;
      shard.state().scalars = scalars_;
      save(shard.state(), communicator, path);
    });
    ASSERT_EQ(failures[0], "");
    for (const std::string& words :
         {"eval " + path + " --threads 1 --sequence 32 --data " + text_file(),
          "sample --threads 1 --prompt a --checkpoint " + path,
          "checkpoint export " + path + " --lora merged --out " + at("merged"),
          "checkpoint export " + path + " --lora adapter --base " + at("hf") + " --out " + at("peft")})
      expect_refusal(words, sentence);
    EXPECT_EQ(run("checkpoint show " + path).code, 0);
  }

  std::map<std::string, Scalar> scalars_;
  std::vector<TestTensor> tensors_;

 private:
  int count_ = 0;
};

TEST_F(ForgedAdapters, ScalarsAreRefused) {
  const std::map<std::string, Scalar> good = scalars_;
  const auto with = [&](const std::string& name, const Scalar& value, const std::string& sentence) {
    scalars_ = good;
    scalars_[name] = value;
    expect_refusals(sentence);
  };
  for (const int64_t rank : {int64_t{-4}, int64_t{0}, int64_t{1} << 40, INT64_MIN})
    with("lora_rank", rank, "its adapters cannot be used");
  with("lora_rank", int64_t{5}, "expected a matrix of rank 5");
  with("lora_rank", 4.0, "the checkpoint's scalar lora_rank is 4, which has the wrong type");
  for (const double alpha : {-1.0, 0.0, 1e300, std::numeric_limits<double>::quiet_NaN()})
    with("lora_alpha", alpha, "its adapters cannot be used");
  with("lora_targets", std::string("q_proj"), "invalid target 'q_proj'");
  with("lora_targets", std::string("qkv,rank=9"), "rank is given twice");
  with("lora_targets", std::string(), "its adapters cannot be used");
  with("lora_targets", std::string("qkv"), "is not part of an adapter of --lora rank=4,alpha=8,targets=qkv");
  with("base_digest", std::string("0"), "has adapters of other weights");
  with("base_digest", int64_t{0}, "has the wrong type");
  for (const char* name : {"lora_alpha", "lora_targets", "base", "base_digest"}) {
    scalars_ = good;
    scalars_.erase(name);
    expect_refusals(std::string("the checkpoint has the scalar lora_rank, but not ") + name);
  }
}

TEST_F(ForgedAdapters, TensorsAreRefused) {
  const std::vector<TestTensor> good = tensors_;
  const auto with = [&](const std::function<void()>& change, const std::string& sentence) {
    tensors_ = good;
    change();
    expect_refusals(sentence);
  };
  const std::string a = "h.0.mlp.c_fc.lora_A.weight", b = "h.0.mlp.c_fc.lora_B.weight";
  with([&] { tensor(a).shape = {5, 32}; }, "expected a matrix of rank 4");
  with([&] { tensor(a).shape = {128}; }, "expected a matrix of rank 4");
  with([&] { tensor(b).shape = {128, 4, 1}; }, "expected a matrix of rank 4");
  with([&] { tensor(a).shape = {4, 31}; }, "h.0.mlp.c_fc");
  with([&] { tensor(b).shape = {0, 4}; }, "h.0.mlp.c_fc");
  with([&] { tensor(a).dtype = DType::kInt16; }, "h.0.mlp.c_fc");
  with([&] { std::erase_if(tensors_, [&](const TestTensor& t) { return t.path == "parameters/" + b; }); },
       "it has the tensor " + a + ", but not " + b);
  with(
      [&] { std::erase_if(tensors_, [&](const TestTensor& t) { return t.path.find("h.0.mlp.c_fc") != t.path.npos; }); },
      "the adapters of mlp.c_fc are not complete");
  with([&] { tensors_.clear(); }, "are not complete");
  with(
      [&] {
        tensors_.push_back({"parameters/h.0.ln_1.weight", {32}, DType::kFloat32});
      },
      "the tensor h.0.ln_1.weight is not part of an adapter");
  with(
      [&] {
        tensors_.push_back({"parameters/h.0.x.lora_A.weight", {4, 32}, DType::kFloat32});
      },
      "the tensor h.0.x.lora_A.weight is not part of an adapter");
  // The base has no block 7.
  with(
      [&] {
        for (TestTensor& one : tensors_) one.path = std::regex_replace(one.path, std::regex("h\\.1"), "h.7");
      },
      "h.");
}

TEST_F(LoraCommand, PlansOnlyTheStateOfAdapters) {
  const auto peak = [](const std::string& more) {
    const Json json = Json::parse(output_of("plan --model llama-1b --precision bf16 --format json " + more));
    return json["plans"][0]["memory"]["peak"].get<double>();
  };
  const double whole = peak(""), adapted = peak("--lora rank=16,targets=all-linear");
  // The fp32 gradients and moments, and the lower halves of the masters, take 14 bytes for each parameter. At other
  // times than the peak, the memory of gradients holds activations.
  EXPECT_GT(whole - adapted, 1.2e9 * 10);
  EXPECT_THAT(output_of("train --threads 1 --steps 2 --layers 2 --width 32 --heads 4 --context 32 --lora rank=4"),
              HasSubstr("agree to the byte"));
}

}  // namespace
}  // namespace aliquot::test
