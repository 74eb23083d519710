// Malice: checkpoints whose checksums are right and whose contents lie.
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

/// The manifest's own hash made right again after `body`, the text before it, was altered.
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
      {"step of another type", [](Json& j) { j["step"] = "100"; }},
      {"step beyond int64", [](Json& j) { j["step"] = 18446744073709551615u; }},
      {"no tensors", [](Json& j) { j.erase("tensors"); }},
      {"tensors that are none", [](Json& j) { j["tensors"] = 3; }},
      {"no file", [](Json& j) { j.erase("file"); }},
      {"another file", [](Json& j) { j["file"]["name"] = "../step-00000099/state.h5"; }},
      {"size", [](Json& j) { j["file"]["bytes"] = kHuge; }},
      {"size 2", [](Json& j) { j["file"]["bytes"] = 4096; }},
      {"negative size", [](Json& j) { j["file"]["bytes"] = -4096; }},
      {"tiles", [](Json& j) { j["file"]["tile_bytes"] = 1; }},
      {"checksums", [](Json& j) { j["file"]["crc32c"].push_back("00000000"); }},
      {"a checksum", [](Json& j) { j["file"]["crc32c"][0] = "0000000g"; }},
      {"a checksum's type", [](Json& j) { j["file"]["crc32c"][0] = 0; }},
  };
}

std::vector<Case> invalid_tensor_fields() {
  return {
      {"path up", [](Json& j) { j["tensors"][0]["path"] = "../../etc/passwd"; }},
      {"path empty", [](Json& j) { j["tensors"][0]["path"] = ""; }},
      {"path absolute", [](Json& j) { j["tensors"][0]["path"] = "/parameters/w"; }},
      {"path control", [](Json& j) { j["tensors"][0]["path"] = std::string("a\0b", 3); }},
      {"path long", [](Json& j) { j["tensors"][0]["path"] = std::string(5000, 'a'); }},
      {"path twice", [](Json& j) { j["tensors"][1]["path"] = j["tensors"][0]["path"]; }},
      {"path of a group", [](Json& j) { j["tensors"][0]["path"] = "optimizer"; }},
      {"order", [](Json& j) { std::swap(j["tensors"][0], j["tensors"][1]); }},
      {"dtype", [](Json& j) { j["tensors"][0]["dtype"] = "float8"; }},
      {"dtype as large", [](Json& j) { j["tensors"][0]["dtype"] = "int16"; }},
      {"negative extent",
       [](Json& j) {
         j["tensors"][0]["shape"] = {-1, -91};
       }},
      {"product wraps",
       [](Json& j) {
         j["tensors"][0]["shape"] = {kHuge, kHuge};
       }},
      {"product wraps to bytes",
       [](Json& j) {
         j["tensors"][0]["shape"] = {int64_t{1} << 62, 4};
       }},
      {"zero hides",
       [](Json& j) {
         j["tensors"][0]["shape"] = {kHuge, kHuge, kHuge, 0};
       }},
      {"rank", [](Json& j) { j["tensors"][0]["shape"] = std::vector<int64_t>(33, 1); }},
      {"shape no list", [](Json& j) { j["tensors"][0]["shape"] = 364; }},
      {"extent no integer",
       [](Json& j) {
         j["tensors"][0]["shape"] = {13.0, 7};
       }},
      {"bytes", [](Json& j) { j["tensors"][0]["bytes"] = 1; }},
      {"place beyond", [](Json& j) { j["tensors"][0]["offset"] = kHuge; }},
      {"place at the end", [](Json& j) { j["tensors"][0]["offset"] = j["file"]["bytes"].get<int64_t>() - 1; }},
      {"place negative", [](Json& j) { j["tensors"][0]["offset"] = -4096; }},
      {"place overflow", [](Json& j) { j["tensors"][0]["offset"] = INT64_MAX; }},
      {"no place", [](Json& j) { j["tensors"][0]["offset"] = nullptr; }},
      {"places overlap", [](Json& j) { j["tensors"][0]["offset"] = j["tensors"][1]["offset"]; }},
      {"elsewhere", [](Json& j) { j["tensors"][0]["offset"] = 0; }},
  };
}

std::vector<Case> invalid_scalar_fields() {
  return {
      {"scalar type",
       [](Json& j) {
         j["scalars"]["seed"] = {{"int65", 1}};
       }},
      {"scalar bare", [](Json& j) { j["scalars"]["seed"] = 1; }},
      {"scalar bits",
       [](Json& j) {
         j["scalars"]["loss_scale"] = {{"float64", "bits:zz"}};
       }},
      {"scalar other",
       [](Json& j) {
         j["scalars"]["seed"] = {{"int64", 8}};
       }},
      {"scalars no object", [](Json& j) { j["scalars"] = Json::array(); }},
  };
}

/// Whether the checkpoint is refused by load, on each of two ranks alike, with the state untouched, and by verify.
::testing::AssertionResult refused(const std::filesystem::path& path) {
  std::vector<std::string> sentences(2);
  test::on_ranks(2, [&](Communicator& communicator) {
    test::Shard shard(small_tensors(), 2, communicator.rank(), test::Partition::kBlocks, 1);
    shard.poison();
    try {
      load(shard.state(), communicator, path);
    } catch (const CheckpointError& error) {
      if (shard.is_poisoned()) sentences[static_cast<size_t>(communicator.rank())] = error.what();
    }
  });
  if (sentences[0].empty() || sentences[0] != sentences[1])
    return ::testing::AssertionFailure() << "load: " << sentences[0] << " | " << sentences[1];
  try {
    verify_checkpoint(path);
  } catch (const CheckpointError&) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "verify accepts it";
}

TEST(Hostile, EveryLieInTheManifestIsRefused) {
  TemporaryDirectory directory;
  test::save_test_state(directory.path(), small_tensors());
  const auto path = directory.path() / "step-00000100";
  const std::string honest = test::read_file(path / "manifest.json");
  ASSERT_EQ(with_valid_hash(Json::parse(honest)), honest);
  std::vector<Case> lies = invalid_file_fields();
  for (const auto& more : {invalid_tensor_fields(), invalid_scalar_fields()})
    lies.insert(lies.end(), more.begin(), more.end());
  for (const Case& lie : lies) {
    Json json = Json::parse(honest);
    lie.alter(json);
    test::write_file(path / "manifest.json", with_valid_hash(json));
    EXPECT_TRUE(refused(path)) << lie.what;
  }
}

TEST(Hostile, TextThatIsNoHonestJsonIsRefused) {
  TemporaryDirectory directory;
  test::save_test_state(directory.path(), small_tensors());
  const auto path = directory.path() / "step-00000100";
  const std::string honest = test::read_file(path / "manifest.json");
  const std::string body = honest.substr(0, honest.size() - kHashTailBytes);
  ASSERT_EQ(with_valid_hash(body), honest);
  const std::string deep = "\"x\":" + std::string(100'000, '[') + std::string(100'000, ']') + ",";
  for (const std::string& text :
       std::vector<std::string>{std::string("{"), std::string("["), std::string(), body + "\"step\":7,", body + deep,
                                body + "\"x\":1e999,", "{\"format\":\"aliquot checkpoint\",",
                                body + "\"x\":\"\xff\xfe\",", body + body, "\xef\xbb\xbf\xef\xbb\xbf" + body}) {
    test::write_file(path / "manifest.json", with_valid_hash(text));
    EXPECT_TRUE(refused(path)) << text.substr(0, 80);
  }
}

TEST(Hostile, AStructureThatIsNotOursIsRefusedThoughItsChecksumsAreRight) {
  TemporaryDirectory directory;
  test::save_test_state(directory.path(), small_tensors());
  const auto path = directory.path() / "step-00000100";
  const std::string state = test::read_file(path / "state.h5");
  const Json honest = Json::parse(test::read_file(path / "manifest.json"));
  for (size_t at :
       {size_t{0}, size_t{9}, state.find("exp_avg"), state.find("parameters"), size_t{60'000}, state.size() - 1}) {
    std::string altered = state;
    altered[at] = static_cast<char>(altered[at] ^ 1);
    test::write_file(path / "state.h5", altered);
    Json json = honest;
    json["file"]["crc32c"][0] = [&] {
      char text[9];
      std::snprintf(text, sizeof text, "%08x", crc32c(std::as_bytes(std::span(altered))));
      return std::string(text);
    }();
    test::write_file(path / "manifest.json", with_valid_hash(json));
    EXPECT_TRUE(refused(path)) << "byte " << at;
  }
}

}  // namespace
}  // namespace aliquot
