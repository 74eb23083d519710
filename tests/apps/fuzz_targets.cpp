// Fuzz targets: the readers of DeepSpeed configurations, flight records, config.json, tokenizer.json and token files.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include "apps/data/token_source.h"
#include "apps/explain/explain.h"
#include "apps/models/hugging_face/config.h"
#include "apps/models/hugging_face/weights.h"
#include "apps/options/deepspeed.h"
#include "apps/text/token_rules.h"
#include "apps/text/tokenizer.h"
#include "kernels/system/error.h"
#include "tests/support/fuzz_target.h"

namespace aliquot::test {
namespace {

/// A temporary file, in /dev/shm if that directory exists. The destructor removes the file.
class InputFile {
 public:
  explicit InputFile(const char* ending = ".json") {
    const std::filesystem::path memory = "/dev/shm";
    const auto folder = std::filesystem::exists(memory) ? memory : std::filesystem::temp_directory_path();
    path_ = folder / ("aliquot-fuzz-" + std::to_string(::getpid()) + ending);
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
    for (const std::string& key : apply_deepspeed_file(options, path)) require(!key.empty(), "a key is empty");
    TrainOptions again;
    apply_deepspeed_file(again, path);
    require(again.engine.zero_stage == options.engine.zero_stage && again.engine.clip == options.engine.clip,
            "reading the same file again gives different options");
  } catch (const UsageError& error) {
    const std::string_view message = error.what();
    require(message.find(path) != std::string_view::npos, "the error message does not name the file");
    require(message.size() < 20'000 + input.size(), "the error message is too long");
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

void run_flight(std::string_view input) {
  try {
    const FlightRecord record = parse_flight(input, "it");
    require(record.entries.size() <= kMaxFlightEntries, "the reader accepts more collectives than a rank keeps");
    const std::string text = flight_text(record);
    require(flight_text(parse_flight(text, "it")) == text, "writing and reading a record changes it");
    const std::string explanation = explain({record});
    const auto is_control = [](char letter) { return static_cast<unsigned char>(letter) < ' ' && letter != '\n'; };
    require(std::ranges::none_of(explanation, is_control), "the explanation contains control characters");
  } catch (const UsageError& error) {
    require(std::string_view(error.what()).starts_with("it is not a valid flight record"),
            "the error message does not name the file");
  }
}

/// Returns the record of a host rank that waits in its last collective, and the record of a GPU rank, whose collectives
/// have no begin and end times.
std::vector<std::string> flight_seeds() {
  std::vector<std::string> seeds;
  for (const bool timed : {true, false}) {
    FlightRecord record;
    record.run = "0123";
    record.rank = 1;
    record.rank_count = 3;
    record.why = "rank 2 failed";
    record.place = "backward h.1";
    record.written = 12.5;
    record.written_utc = "2026-11-22T03:00:12Z";
    record.groups = {{0, 1, 2}, {1, 2}};
    if (timed) {
      record.mesh = {{3, 1, 1, 1}, {1, 0, 0, 0}};
      record.group_names = {"world", "pair of pipeline stages 1 and 2"};
      record.model_code = {{"forward h.1", 0, 7, 1.5, 2.5}, {"backward h.1", 0, 7, 3, -1}};
    }
    for (const uint64_t number : {uint64_t{1}, uint64_t{2}, uint64_t{3}}) {
      FlightEntry entry;
      entry.number = entry.sequence = number;
      entry.group = number == 3 ? 1 : 0;
      entry.lane = Lane::kReduce;
      entry.unit = "h.1";
      entry.what = {.kind = OperationDescription::Kind::kReduceScatter, .dtype = DType::kFloat32, .count = 4096};
      entry.step = 7;
      entry.issued = static_cast<double>(number);
      if (timed) entry.begun = entry.issued;
      if (timed && number < 3) entry.ended = entry.issued + 0.5;
      record.entries.push_back(entry);
    }
    FlightEntry rendezvous;
    rendezvous.is_rendezvous = true;
    rendezvous.sequence = 1;
    rendezvous.unit = "save";
    rendezvous.issued = rendezvous.begun = 3.5;
    record.rendezvous.push_back(rendezvous);
    seeds.push_back(flight_text(record));
  }
  return seeds;
}

void run_model_config(std::string_view input) {
  try {
    const ModelConfig config = parse_model_config(input, "it");
    const ModelConfig again = parse_model_config(config_text(config.shape, "float32"), "it");
    require(again.shape == config.shape, "writing and reading a configuration changes the model");
    require(again.remarks.empty(), "the reader does not know a key that config_text writes");
  } catch (const UsageError& error) {
    const std::string_view message = error.what();
    require(message.starts_with("it: "), "the error message does not name the file");
    require(message.size() < 2000, "the error message is too long");
  }
}

std::vector<std::string> model_config_seeds() {
  std::vector<std::string> seeds;
  for (const char* preset : {"gpt2-nano", "llama-nano", "llama-8b"})
    seeds.push_back(config_text(find_model_preset(preset)->shape, "float32"));
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"})
    seeds.push_back(
        R"({"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,)"
        R"( "intermediate_size": 48, "max_position_embeddings": 64, "vocab_size": 99, "head_dim": 12, "sliding_window": 7,)"
        R"( "use_sliding_window": true, "max_window_layers": 1, "layer_types": null, "rope_scaling": {"rope_type": "yarn",)"
        R"( "factor": 4, "mscale": 0.7, "mscale_all_dim": 1, "truncate": false, "beta_fast": 16}, "model_type": ")" +
        std::string(type) + "\"}");
  seeds.push_back(
      R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,)"
      R"( "intermediate_size": 48, "max_position_embeddings": 64, "vocab_size": 99, "head_dim": null,)"
      R"( "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}, "layer_types": ["full_attention"]})");
  return seeds;
}

bool has_token_rules(std::string_view input) {
  try {
    token_rules(input, "it");
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

/// The input is a tokenizer.json. The tokenizer also encodes a fixed text.
void run_tokenizer(std::string_view input) {
  const bool has_rules = has_token_rules(input);
  try {
    const Tokenizer tokenizer(input, "it");
    require(has_rules, "token_rules() refuses a tokenizer that is supported");
    std::vector<int32_t> tokens;
    Tokenizer::Encoder(tokenizer).encode("It's 12  \u00e9\n\u2581aab <s> \U0001f642", tokens);
    for (const int32_t token : tokens)
      require(token >= 0 && token < tokenizer.vocabulary_size(), "a token is outside the vocabulary");
  } catch (const UsageError& error) {
    const std::string_view message = error.what();
    require(message.starts_with("it: ") || message.find("the tokenizer") != std::string_view::npos,
            "expected an error message that names the file or the tokenizer");
    require(message.size() < 2000, "the error message is too long");
  }
}

std::vector<std::string> tokenizer_seeds() {
  const std::string added =
      R"("added_tokens":[{"id":5,"content":"<s>","single_word":false,"lstrip":true,"rstrip":true,)"
      R"("normalized":true,"special":true}],)";
  const std::string bpe = R"("model":{"type":"BPE","unk_token":"u","fuse_unk":true,"byte_fallback":false,)"
                          R"("ignore_merges":true,"vocab":{"a":0,"b":1,"ab":2,"u":3,"\u0120":4},"merges":["a b"]}})";
  return {
      "{" + added + R"("normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true},)" +
          bpe,
      "{" + added +
          R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"},)"
          R"({"type":"Replace","pattern":{"Regex":" {2,}"},"content":"b"}]},)" +
          bpe,
      "{" + added +
          R"x("pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?i:'s)| ?\\p{L}+|\\s+(?!\\S)"},)x"
          R"("behavior":"MergedWithNext","invert":true},)" +
          bpe,
      R"({"normalizer":{"type":"Sequence","normalizers":[{"type":"Nmt"},{"type":"Precompiled",)"
      R"("precompiled_charsmap":"CAAAAAABAAAAAQAAYQBi"}]},"model":{"type":"Unigram","unk_id":0,"vocab":[["u",0]]}})",
      R"({"normalizer":{"type":"NFKD"},"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"first"},)"
      R"("model":{"type":"Unigram","unk_id":0,"byte_fallback":true,"vocab":[["u",0],["a",-1],["aab",-2.5]]}})"};
}

/// The first byte of the input selects the file extension. The remaining bytes are the contents of the file.
void run_tokens(std::string_view input) {
  static const InputFile files[] = {InputFile(".bin"), InputFile(".u32"), InputFile(".txt")};
  if (input.empty()) return;
  const std::string path = files[static_cast<unsigned char>(input[0]) % 3].write(input.substr(1));
  try {
    const auto source = open_token_source(path);
    require(source->token_count() > 0, "the reader accepts a file without tokens");
    std::vector<int32_t> ends(2);
    source->find_out_of_range(0, source->token_count(), 100);
    source->read(0, std::span(ends).first(1), int64_t{1} << 31);
    source->read(source->token_count() - 1, std::span(ends).last(1), int64_t{1} << 31);
  } catch (const UsageError& error) {
    require(std::string_view(error.what()).find(path) != std::string_view::npos,
            "the error message does not name the file");
  }
}

std::vector<std::string> token_seeds() {
  std::vector<std::string> seeds{std::string("2plain text"), std::string("0\1\0\2\0", 5), std::string("1\1\0\0\0", 5)};
  std::string llmc(1 + 1024 + 4, '\0');
  llmc.replace(1, 12, std::string("\x88\xd8\x34\x01\1\0\0\0\2\0\0\0", 12));
  seeds.push_back(llmc);
  seeds.push_back(std::string("2\x93NUMPY\1\0\x3c\0", 11) +
                  "{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }  \n" + std::string("\1\0\2\0", 4));
  seeds.push_back(std::string("0\x10\0\0\0\0\0\0\0{\"w\":{}}        ", 25));
  return seeds;
}

}  // namespace

std::span<const FuzzTarget> fuzz_targets() {
  static const std::vector<FuzzTarget> targets{
      {"deepspeed",
       run_deepspeed,
       deepspeed_seeds,
       {"\"zero_optimization\":{", "\"stage\":", "\"optimizer\":{\"type\":\"", "\"params\":{", "\"enabled\":true",
        "\"auto\"", "null", "1e999", "-9223372036854775809", "[[[[", "{\"a\":{\"a\":", "\\ud800", "/*", "NaN"}},
      {"flight",
       run_flight,
       flight_seeds,
       {"collective\t", "meeting\t", "end\t", "group\t", "rank\t", "ranks\t", "run\t", "why\t", "utc\t", "gather",
        "barrier", "-", "inf", "1e308", "18446744073709551615", "1048576", "0000000000000000"}},
      {"model_config",
       run_model_config,
       model_config_seeds,
       {"\"model_type\":\"", "\"rope_scaling\":{", "\"rope_parameters\":{", "\"rope_type\":\"llama3\"",
        "\"rope_type\":\"yarn\"", "\"rope_type\":\"dynamic\"", "\"attention_bias\":true", "\"sliding_attention\"",
        "\"factor\":", "\"head_dim\":", "\"sliding_window\":", "\"layer_types\":[", "null", "1e999",
        "18446744073709551616", "[[[[", "{\"a\":{\"a\":", "\\ud800", "NaN"}},
      {"tokenizer",
       run_tokenizer,
       tokenizer_seeds,
       {"\"Sequence\"", "\"Strip\"", "\"Digits\"", "\"Metaspace\"", "\"WhitespaceSplit\"", "\"Regex\":\"", "[^\\\\s]",
        "{2,3}", "++", "\"merges\":[", "\"vocab\":{", "null", "1e999", "18446744073709551616", "[[[[", "\\ud800",
        "NaN"}},
      {"tokens",
       run_tokens,
       token_seeds,
       {"'descr': '<u", "'shape': (", ",)", "9223372036854775807", "PAR1", "BZh91AY&SY"}}};
  return targets;
}

}  // namespace aliquot::test
