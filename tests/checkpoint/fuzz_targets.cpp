#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "checkpoint/file/manifest.h"
#include "checkpoint/hash/crc32c.h"
#include "checkpoint/hash/sha256.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/verify.h"
#include "checkpoint/weights/safetensors.h"
#include "checkpoint/weights/weights.h"
#include "sharding/world.h"
#include "tests/checkpoint/support.h"
#include "tests/support/fuzz_target.h"

namespace aliquot::test {
namespace {

/// Runs `body`. Returns false if it throws an Error, which means that it rejected its input. Any other exception ends
/// the program.
template <typename Body>
bool accepted(Body&& body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    require(error.what()[0] != '\0', "an error has an empty message");
    return false;
  }
}

/// Returns the text of a manifest with a valid hash appended, as an attacker would do.
std::string with_valid_hash(std::string_view body) {
  const std::string begin = std::string(body) + "\"sha256\":\"", end = "\"}\n";
  return begin + sha256_hex(begin + std::string(64, '0') + end) + end;
}

constexpr size_t kHashTailBytes = 10 + 64 + 3;  // "sha256":"..."} and a newline

/// A small valid checkpoint, created once. The targets overwrite its files with altered versions of `state` and
/// `manifest`.
class SampleCheckpoint {
 public:
  SampleCheckpoint() {
    save_test_state(directory_.path(), small_tensors());
    state = read_file(path() / kStateFile);
    manifest = read_file(path() / kManifestFile);
  }
  std::filesystem::path path() const { return directory_.path() / "step-00000100"; }

  std::string state, manifest;

 private:
  TemporaryDirectory directory_{std::filesystem::exists("/dev/shm") ? "/dev/shm"
                                                                    : std::filesystem::temp_directory_path()};
};

SampleCheckpoint& sample() {
  static SampleCheckpoint sample;
  return sample;
}

void run_manifest(std::string_view input) {
  accepted([&] { parse_manifest(input, "input"); });
  const std::string text = with_valid_hash(input);
  Manifest manifest;
  if (!accepted([&] { manifest = parse_manifest(text, "input"); })) return;
  const std::string again = manifest_text(manifest);
  require(manifest_text(parse_manifest(again, "again")) == again,
          "a manifest changes when it is written and parsed again");
  for (const TensorEntry& tensor : manifest.tensors) {
    require(tensor.size_bytes == 0 ||
                (tensor.file_offset >= 0 && tensor.file_offset + tensor.size_bytes <= manifest.file_bytes),
            "a tensor extends past the end of the file");
  }
}

std::vector<std::string> manifest_seeds() {
  const std::string& text = sample().manifest;
  return {text.substr(0, text.size() - kHashTailBytes), "{", R"({"format":"aliquot checkpoint","version":1,)"};
}

Communicator& single_rank() {
  static World world = [] {
    WorldOptions options;
    options.device = DeviceChoice::kHost;
    options.kind = WorldChoice::kThreads;
    options.threads_per_rank = 1;
    return World::from_environment(options);
  }();
  return world.communicator();
}

std::string crc_text(std::string_view bytes) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", crc32c(std::as_bytes(std::span(bytes))));
  return text;
}

/// Alters a valid checkpoint as the input specifies, and loads it. Each group of four bytes after the first byte has a
/// position (three bytes) and a value to add to the byte there. Three bits of the first byte truncate state.h5, change
/// the HDF5 version and omit the hash. The checksum and any hash are made valid again.
void run_checkpoint(std::string_view input) {
  if (input.empty()) return;
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(input[i])); };
  std::string state = sample().state;
  std::string body = sample().manifest.substr(0, sample().manifest.size() - kHashTailBytes);
  for (size_t i = 1; i + 4 <= input.size(); i += 4) {
    const size_t position = byte(i) | byte(i + 1) << 8 | byte(i + 2) << 16;
    std::string& which = (position & 1) != 0 ? body : state;
    char& target = which[(position >> 1) % which.size()];
    target = static_cast<char>(static_cast<unsigned char>(target) + byte(i + 3));
  }
  if ((byte(0) & 1) != 0) state.resize(state.size() / 2);
  if ((byte(0) & 2) != 0) {
    const size_t version = body.find("1.");
    // If the HDF5 versions of the manifest and of this build differ, load() does not check the structure of state.h5.
    if (version != std::string::npos) body[version] = '2';
  }
  const std::string before = crc_text(sample().state);
  if (const size_t at = body.find(before); at != std::string::npos) body.replace(at, 8, crc_text(state));
  write_file(sample().path() / kStateFile, state);
  write_file(sample().path() / kManifestFile, (byte(0) & 4) != 0 ? body : with_valid_hash(body));
  for (const bool fresh : {false, true}) {
    Shard shard(small_tensors(), 1, 0, Partition::kBlocks, 5);
    shard.poison();
    LoadOptions options;
    options.state_is_fresh = fresh;
    const bool loaded = accepted([&] { load(shard.state(), single_rank(), sample().path(), options); });
    require(loaded || fresh || shard.is_poisoned(), "a rejected checkpoint modified the state");
  }
  accepted([] { verify_checkpoint(sample().path()); });
}

std::vector<std::string> checkpoint_seeds() {
  return {std::string(1, '\0'), std::string("\0\x21\0\0\1", 5), std::string("\2\x40\2\0\1\x41\2\0\1", 9)};
}

void run_safetensors(std::string_view input) {
  for (const int64_t data_bytes : {int64_t{0}, int64_t{8}, int64_t{26}}) {
    SafetensorsHeader header;
    if (!accepted([&] { header = parse_safetensors_header(input, data_bytes, "input"); })) continue;
    int64_t total = 0;
    for (const SafetensorsEntry& tensor : header.tensors) {
      require(0 <= tensor.begin && tensor.begin <= tensor.end && tensor.end <= data_bytes,
              "a tensor extends past the end of the file");
      total += tensor.end - tensor.begin;
    }
    require(total == data_bytes, "tensors do not fill the file");
    std::vector<SafetensorsEntry> entries = header.tensors;
    const std::string text = safetensors_prefix(entries, header.metadata);
    const auto again = parse_safetensors_header(std::string_view(text).substr(8), data_bytes, "again");
    require(again.tensors.size() == entries.size(), "a header changes when it is written and parsed again");
  }
}

std::vector<std::string> safetensors_seeds() {
  return {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
          R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},)"
          R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
          R"("e":{"dtype":"F64","shape":[0,5],"data_offsets":[26,26]}})",
          "{}   "};
}

void run_weight_index(std::string_view input) {
  std::set<std::string> files;
  if (!accepted([&] { files = parse_weight_index(input, "input"); })) return;
  for (const std::string& file : files)
    require(file.find('/') == std::string::npos, "an index names a file in another directory");
}

std::vector<std::string> weight_index_seeds() {
  return {R"({"metadata":{"total_size":8},"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}})", "{}"};
}

}  // namespace

std::span<const FuzzTarget> fuzz_targets() {
  static const std::vector<FuzzTarget> targets{
      {"manifest",
       run_manifest,
       manifest_seeds,
       {"\"shape\":[", "\"offset\":", "\"bytes\":", "null", "9223372036854775807", "-1", "1e999", "bits:", "\\u0000",
        "{\"int64\":"}},
      {"checkpoint", run_checkpoint, checkpoint_seeds, {}},
      {"safetensors",
       run_safetensors,
       safetensors_seeds,
       {"\"dtype\":\"F32\"", "\"shape\":[", "\"data_offsets\":[0,", "__metadata__", "9007199254740993", "\\ud800", "[[",
        "{{"}},
      {"weight_index", run_weight_index, weight_index_seeds, {"weight_map", "../", ".safetensors", "\"\":", "[[[["}}};
  return targets;
}

}  // namespace aliquot::test
