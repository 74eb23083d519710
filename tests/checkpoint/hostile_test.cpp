// Loads malicious checkpoints: all checksums are valid, but the contents are not. Each must be rejected.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/file/hdf5_structure.h"
#include "checkpoint/file/manifest.h"
#include "checkpoint/hash/crc32c.h"
#include "checkpoint/hash/sha256.h"
#include "checkpoint/load.h"
#include "checkpoint/verify.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using Json = nlohmann::ordered_json;
using test::small_tensors;
using test::TemporaryDirectory;

constexpr int64_t kHuge = int64_t{1} << 40;
constexpr size_t kHashTailBytes = 10 + 64 + 3;  // "sha256":"..."} and a newline

/// Appends a valid hash to `body`, the text of a manifest before the hash.
std::string with_valid_hash(const std::string& body) {
  const std::string begin = body + "\"sha256\":\"", end = "\"}\n";
  return begin + sha256_hex(begin + std::string(64, '0') + end) + end;
}

std::string with_valid_hash(Json json) {
  json.erase("sha256");
  std::string body = json.dump();
  body.back() = ',';
  return with_valid_hash(body);
}

struct Case {
  const char* what;
  std::function<void(Json&)> alter;
};

std::vector<Case> invalid_file_fields() {
  return {
      {"format", [](Json& j) { j["format"] = "other"; }},
      {"version", [](Json& j) { j["version"] = 2; }},
      {"features", [](Json& j) { j["required_features"].push_back("striped"); }},
      {"step", [](Json& j) { j["step"] = -1; }},
      {"step a string", [](Json& j) { j["step"] = "100"; }},
      {"step beyond int64", [](Json& j) { j["step"] = 18446744073709551615u; }},
      {"no tensors", [](Json& j) { j.erase("tensors"); }},
      {"tensors not an array", [](Json& j) { j["tensors"] = 3; }},
      {"no file", [](Json& j) { j.erase("file"); }},
      {"file name", [](Json& j) { j["file"]["name"] = "../step-00000099/state.h5"; }},
      {"size too large", [](Json& j) { j["file"]["bytes"] = kHuge; }},
      {"size too small", [](Json& j) { j["file"]["bytes"] = 4096; }},
      {"negative size", [](Json& j) { j["file"]["bytes"] = -4096; }},
      {"tile size", [](Json& j) { j["file"]["tile_bytes"] = 1; }},
      {"one checksum too many", [](Json& j) { j["file"]["crc32c"].push_back("00000000"); }},
      {"checksum not hexadecimal", [](Json& j) { j["file"]["crc32c"][0] = "0000000g"; }},
      {"checksum not a string", [](Json& j) { j["file"]["crc32c"][0] = 0; }},
  };
}

std::vector<Case> invalid_tensor_fields() {
  return {
      {"path with ..", [](Json& j) { j["tensors"][0]["path"] = "../../etc/passwd"; }},
      {"path empty", [](Json& j) { j["tensors"][0]["path"] = ""; }},
      {"path absolute", [](Json& j) { j["tensors"][0]["path"] = "/parameters/w"; }},
      {"path with a control character", [](Json& j) { j["tensors"][0]["path"] = std::string("a\0b", 3); }},
      {"path too long", [](Json& j) { j["tensors"][0]["path"] = std::string(5000, 'a'); }},
      {"path twice", [](Json& j) { j["tensors"][1]["path"] = j["tensors"][0]["path"]; }},
      {"path of a group", [](Json& j) { j["tensors"][0]["path"] = "optimizer"; }},
      {"order", [](Json& j) { std::swap(j["tensors"][0], j["tensors"][1]); }},
      {"unknown dtype", [](Json& j) { j["tensors"][0]["dtype"] = "float8"; }},
      {"dtype of another size", [](Json& j) { j["tensors"][0]["dtype"] = "int16"; }},
      {"negative extent",
       [](Json& j) {
         j["tensors"][0]["shape"] = {-1, -91};
       }},
      {"product overflows",
       [](Json& j) {
         j["tensors"][0]["shape"] = {kHuge, kHuge};
       }},
      {"product overflows to 0",
       [](Json& j) {
         j["tensors"][0]["shape"] = {int64_t{1} << 62, 4};
       }},
      {"product overflows before an extent of 0",
       [](Json& j) {
         j["tensors"][0]["shape"] = {kHuge, kHuge, kHuge, 0};
       }},
      {"too many extents", [](Json& j) { j["tensors"][0]["shape"] = std::vector<int64_t>(33, 1); }},
      {"shape not an array", [](Json& j) { j["tensors"][0]["shape"] = 364; }},
      {"extent not an integer",
       [](Json& j) {
         j["tensors"][0]["shape"] = {13.0, 7};
       }},
      {"byte count", [](Json& j) { j["tensors"][0]["bytes"] = 1; }},
      {"offset past the end", [](Json& j) { j["tensors"][0]["offset"] = kHuge; }},
      {"offset at the end", [](Json& j) { j["tensors"][0]["offset"] = j["file"]["bytes"].get<int64_t>() - 1; }},
      {"negative offset", [](Json& j) { j["tensors"][0]["offset"] = -4096; }},
      {"offset that overflows", [](Json& j) { j["tensors"][0]["offset"] = INT64_MAX; }},
      {"no offset", [](Json& j) { j["tensors"][0]["offset"] = nullptr; }},
      {"equal offsets", [](Json& j) { j["tensors"][0]["offset"] = j["tensors"][1]["offset"]; }},
      {"offset 0", [](Json& j) { j["tensors"][0]["offset"] = 0; }},
  };
}

std::vector<Case> invalid_scalar_fields() {
  return {
      {"scalar type",
       [](Json& j) {
         j["scalars"]["seed"] = {{"int65", 1}};
       }},
      {"scalar without a type", [](Json& j) { j["scalars"]["seed"] = 1; }},
      {"scalar bits",
       [](Json& j) {
         j["scalars"]["loss_scale"] = {{"float64", "bits:zz"}};
       }},
      {"scalar with another value",
       [](Json& j) {
         j["scalars"]["seed"] = {{"int64", 8}};
       }},
      {"scalars not an object", [](Json& j) { j["scalars"] = Json::array(); }},
  };
}

/// Checks that load() throws the same CheckpointError on both of two ranks and leaves the state unmodified. Also checks
/// that verify_checkpoint() throws.
::testing::AssertionResult rejected(const std::filesystem::path& path) {
  std::vector<std::string> errors(2);
  test::on_ranks(2, [&](Communicator& communicator) {
    test::Shard shard(small_tensors(), 2, communicator.rank(), test::Partition::kBlocks, 1);
    shard.poison();
    try {
      load(shard.state(), communicator, path);
    } catch (const CheckpointError& error) {
      if (shard.is_poisoned()) errors[static_cast<size_t>(communicator.rank())] = error.what();
    }
  });
  if (errors[0].empty() || errors[0] != errors[1])
    return ::testing::AssertionFailure() << "load() throws: " << errors[0] << " | " << errors[1];
  try {
    verify_checkpoint(path);
  } catch (const CheckpointError&) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "verify_checkpoint() accepts the checkpoint";
}

TEST(Hostile, EveryInvalidFieldOfTheManifestIsRejected) {
  TemporaryDirectory directory;
  test::save_test_state(directory.path(), small_tensors());
  const auto path = directory.path() / "step-00000100";
  const std::string valid = test::read_file(path / "manifest.json");
  ASSERT_EQ(with_valid_hash(Json::parse(valid)), valid);
  std::vector<Case> cases = invalid_file_fields();
  for (const auto& more : {invalid_tensor_fields(), invalid_scalar_fields()})
    cases.insert(cases.end(), more.begin(), more.end());
  for (const Case& each : cases) {
    Json json = Json::parse(valid);
    each.alter(json);
    test::write_file(path / "manifest.json", with_valid_hash(json));
    EXPECT_TRUE(rejected(path)) << each.what;
  }
}

TEST(Hostile, ManifestsThatAreNotStrictJsonAreRejected) {
  TemporaryDirectory directory;
  test::save_test_state(directory.path(), small_tensors());
  const auto path = directory.path() / "step-00000100";
  const std::string valid = test::read_file(path / "manifest.json");
  const std::string body = valid.substr(0, valid.size() - kHashTailBytes);
  ASSERT_EQ(with_valid_hash(body), valid);
  const std::string deep = "\"x\":" + std::string(100'000, '[') + std::string(100'000, ']') + ",";
  for (const std::string& text :
       std::vector<std::string>{std::string("{"), std::string("["), std::string(), body + "\"step\":7,", body + deep,
                                body + "\"x\":1e999,", "{\"format\":\"aliquot checkpoint\",",
                                body + "\"x\":\"\xff\xfe\",", body + body, "\xef\xbb\xbf\xef\xbb\xbf" + body}) {
    test::write_file(path / "manifest.json", with_valid_hash(text));
    EXPECT_TRUE(rejected(path)) << text.substr(0, 80);
  }
}

TEST(Hostile, AnAlteredStructureIsRejectedDespiteValidChecksums) {
  TemporaryDirectory directory;
  test::save_test_state(directory.path(), small_tensors());
  const auto path = directory.path() / "step-00000100";
  const std::string state = test::read_file(path / "state.h5");
  const Json valid = Json::parse(test::read_file(path / "manifest.json"));
  for (size_t at :
       {size_t{0}, size_t{9}, state.find("exp_avg"), state.find("parameters"), size_t{60'000}, state.size() - 1}) {
    std::string altered = state;
    altered[at] = static_cast<char>(altered[at] ^ 1);
    test::write_file(path / "state.h5", altered);
    Json json = valid;
    json["file"]["crc32c"][0] = [&] {
      char text[9];
      std::snprintf(text, sizeof text, "%08x", crc32c(std::as_bytes(std::span(altered))));
      return std::string(text);
    }();
    test::write_file(path / "manifest.json", with_valid_hash(json));
    EXPECT_TRUE(rejected(path)) << "byte " << at;
  }
}

}  // namespace
}  // namespace aliquot
