// Reads weight files of other programs: valid files of every type, and files with every kind of malformed header.
#include "checkpoint/weights/safetensors.h"

#include <array>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>
#include <sys/stat.h>

#include "checkpoint/file/convert.h"
#include "checkpoint/save.h"
#include "checkpoint/weights/export_weights.h"
#include "checkpoint/weights/weights.h"
#include "kernels/system/error.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using test::TemporaryDirectory;

std::string file_of(const std::string& header, const std::string& data) {
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  return length + header + data;
}

/// Returns a header with one tensor that has the given name and fields.
std::string header(const std::string& name, const std::string& fields) { return "{\"" + name + "\":{" + fields + "}}"; }
constexpr const char* kValidFields = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";

TEST(Safetensors, AWrittenHeaderIsParsedToTheSameEntries) {
  std::vector<SafetensorsEntry> entries(3);
  entries[0].name = "b", entries[0].type = "F32", entries[0].shape = {2, 3};
  entries[1].name = "a \"quoted\" \xc3\xa9", entries[1].type = "BF16", entries[1].shape = {};
  entries[2].name = "empty", entries[2].type = "F64", entries[2].shape = {0, 5};
  const std::string prefix = safetensors_prefix(entries, {{"format", "pt"}});
  EXPECT_EQ(prefix.size() % 8, 0u);
  const SafetensorsHeader back = parse_safetensors_header(std::string_view(prefix).substr(8), 26, "here");
  ASSERT_EQ(back.tensors.size(), 3u);
  EXPECT_EQ(back.metadata.at("format"), "pt");
  EXPECT_EQ(back.tensors[0].name, entries[1].name);
  EXPECT_EQ(back.tensors[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(back.tensors[1].end, 24);
  EXPECT_EQ(back.tensors[2].begin, back.tensors[2].end);
}

using InvalidHeaders = std::vector<std::pair<const char*, std::string>>;

InvalidHeaders headers_of_wrong_kind() {
  return {
      {"empty text", ""},
      {"an array", "[1,2]"},
      {"a number", "8"},
      {"leading blank", " " + header("w", kValidFields)},
      {"truncated", header("w", kValidFields).substr(0, 30)},
      {"trailing text", header("w", kValidFields) + "{}"},
      {"trailing NUL", header("w", kValidFields) + std::string(1, '\0')},
      {"unknown type", header("w", R"("dtype":"F33","shape":[2],"data_offsets":[0,8])")},
      {"type not a string", header("w", R"("dtype":4,"shape":[2],"data_offsets":[0,8])")},
      {"no type", header("w", R"("shape":[2],"data_offsets":[0,8])")},
      {"no shape", header("w", R"("dtype":"F32","data_offsets":[0,8])")},
      {"no offsets", header("w", R"("dtype":"F32","shape":[2])")},
      {"unknown key", header("w", std::string(kValidFields) + R"(,"stride":[1])")},
      {"key twice", header("w", std::string(kValidFields) + R"(,"shape":[2])")},
      {"tensor twice", R"({"w":{)" + std::string(kValidFields) + R"(},"w":{)" + kValidFields + "}}"},
      {"metadata twice",
       R"({"__metadata__":{"a":"b"},"__metadata__":{"a":"b"},"w":{)" + std::string(kValidFields) + "}}"},
      {"metadata key twice", R"({"__metadata__":{"a":"b","a":"c"},"w":{)" + std::string(kValidFields) + "}}"},
      {"metadata value not a string", R"({"__metadata__":{"a":1},"w":{)" + std::string(kValidFields) + "}}"},
      {"metadata value an object", R"({"__metadata__":{"a":{}},"w":{)" + std::string(kValidFields) + "}}"},
      {"metadata an array", R"({"__metadata__":[],"w":{)" + std::string(kValidFields) + "}}"},
      {"tensor a string", R"({"w":"x"})"},
      {"tensor null", R"({"w":null})"},
  };
}

InvalidHeaders headers_with_wrong_numbers() {
  const std::string two = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],)";
  return {
      {"negative extent", header("w", R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])")},
      {"extent not an integer", header("w", R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])")},
      {"extent a string", header("w", R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])")},
      {"extent an array", header("w", R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])")},
      {"extent 2^53+1", header("w", R"("dtype":"F32","shape":[9007199254740993],"data_offsets":[0,8])")},
      {"extent 2^64", header("w", R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8])")},
      {"product overflows", header("w", R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])")},
      {"product overflows to 8",
       header("w", R"("dtype":"F32","shape":[4611686018427387904,4,2],"data_offsets":[0,8])")},
      {"product overflows before an extent of 0",
       header("w", R"("dtype":"F32","shape":[1099511627776,1099511627776,0],"data_offsets":[0,0])")},
      {"33 extents",
       header("w", R"("dtype":"F32","shape":[2,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],)"
                   R"("data_offsets":[0,8])")},
      {"fewer bytes", header("w", R"("dtype":"F32","shape":[2],"data_offsets":[0,4])")},
      {"more bytes", header("w", R"("dtype":"F32","shape":[2],"data_offsets":[0,16])")},
      {"reversed offsets", header("w", R"("dtype":"F32","shape":[2],"data_offsets":[8,0])")},
      {"gap before the first tensor", header("w", R"("dtype":"F32","shape":[1],"data_offsets":[4,8])")},
      {"gap after the last tensor", header("w", R"("dtype":"F32","shape":[1],"data_offsets":[0,4])")},
      {"one offset", header("w", R"("dtype":"F32","shape":[2],"data_offsets":[8])")},
      {"three offsets", header("w", R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])")},
      {"negative offset", header("w", R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])")},
      {"complete overlap", two + R"("data_offsets":[0,4]}})"},
      {"partial overlap", two + R"("data_offsets":[2,6]}})"},
      {"gap between tensors", two + R"("data_offsets":[8,12]}})"},
      {"invalid UTF-8", header("w\xff\xfe", kValidFields)},
      {"overlong UTF-8", header("w\xc0\xaf", kValidFields)},
      {"single surrogate", header("w\\ud800", kValidFields)},
      {"a control character", header("w\x01", kValidFields)},
      {"deep arrays", R"({"w":)" + std::string(200'000, '[')},
      {"deep objects", std::string(200'000, '{')},
  };
}

TEST(Safetensors, EveryInvalidHeaderIsRejected) {
  InvalidHeaders invalid = headers_of_wrong_kind();
  const InvalidHeaders more = headers_with_wrong_numbers();
  invalid.insert(invalid.end(), more.begin(), more.end());
  for (const auto& [what, text] : invalid) {
    EXPECT_THROW(parse_safetensors_header(text, 8, "here"), UsageError) << what;
  }
  EXPECT_NO_THROW(parse_safetensors_header(header("w", kValidFields), 8, "here"));
  EXPECT_NO_THROW(parse_safetensors_header(header("w", kValidFields) + "   ", 8, "here"));
}

TEST(Safetensors, FilesThatAreNotSafetensorsAreRejected) {
  TemporaryDirectory directory;
  const auto path = directory.path() / "w.safetensors";
  const std::string valid = file_of(header("w", kValidFields), "12345678");
  const auto expect_rejected = [&](const std::string& bytes) {
    test::write_file(path, bytes);
    EXPECT_THROW(SafetensorsFile::open(FileSystem::system(), path), UsageError) << bytes.size();
  };
  for (size_t bytes = 0; bytes < valid.size(); ++bytes) expect_rejected(valid.substr(0, bytes));
  expect_rejected(valid + "x");
  for (size_t byte = 0; byte < 8; ++byte) {
    std::string longer = valid;
    longer[byte] = static_cast<char>(0xff);
    expect_rejected(longer);
  }
  test::write_file(path, valid);
  EXPECT_NO_THROW(SafetensorsFile::open(FileSystem::system(), path));
  EXPECT_THROW(SafetensorsFile::open(FileSystem::system(), directory.path()), UsageError);
  EXPECT_THROW(SafetensorsFile::open(FileSystem::system(), directory.path() / "none"), UsageError);
  std::filesystem::create_symlink("w.safetensors", directory.path() / "link.safetensors");
  EXPECT_NO_THROW(SafetensorsFile::open(FileSystem::system(), directory.path() / "link.safetensors"));
}

TEST(Safetensors, AnIndexNamesOnlyFilesInItsDirectory) {
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"../a.safetensors"}})", R"({"weight_map":{"a":"/etc/a.safetensors"}})",
        R"({"weight_map":{"a":".."}})", R"({"weight_map":{"a":""}})", R"({"weight_map":{"a":"passwd"}})",
        R"({"weight_map":{"a":"a.safetensors","a":"b.safetensors"}})"}) {
    EXPECT_THROW(parse_weight_index(text, "here"), UsageError) << text;
  }
  EXPECT_EQ(parse_weight_index(
                R"({"metadata":{"total_size":8},"weight_map":{"a":"1.safetensors","b":"1.safetensors"}})", "here"),
            std::set<std::string>{"1.safetensors"});
}

TEST(Weights, SeveralFilesWithNamePrefixesFormOneSet) {
  TemporaryDirectory directory;
  const auto write = [&](const char* name, const std::string& text, const std::string& data) {
    test::write_file(directory.path() / name, file_of(text, data));
  };
  write("1.safetensors", header("transformer.wte.weight", kValidFields), "12345678");
  write("2.safetensors",
        R"({"lm_head.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
        R"("transformer.h.0.attn.bias":{"dtype":"BOOL","shape":[1,1,2,2],"data_offsets":[8,12]}})",
        "12345678abcd");
  test::write_file(directory.path() / "model.safetensors.index.json",
                   R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  for (const auto& path : {directory.path(), directory.path() / "model.safetensors.index.json"}) {
    EXPECT_TRUE(is_weights_path(path));
    const WeightFiles weights = WeightFiles::open(FileSystem::system(), path);
    ASSERT_EQ(weights.tensors().size(), 1u);
    EXPECT_EQ(weights.tensors()[0].name, "wte.weight");
    EXPECT_EQ(weights.skipped_tensors(), (std::vector<std::string>{"transformer.h.0.attn.bias", "lm_head.weight"}));
    const WeightFiles with_head = WeightFiles::open(FileSystem::system(), path, EqualHead::kKeep);
    EXPECT_NE(with_head.find("lm_head.weight"), nullptr);
    EXPECT_EQ(with_head.skipped_tensors(), (std::vector<std::string>{"transformer.h.0.attn.bias"}));
  }
  write("1.safetensors", header("transformer.wte.weight", kValidFields),
        "12345679");  // the head differs from the embedding
  EXPECT_EQ(WeightFiles::open(FileSystem::system(), directory.path()).tensors().size(), 2u);
  write("2.safetensors", header("model.wte.weight", kValidFields),
        "12345678");  // two tensors with the same canonical name
  EXPECT_THROW(WeightFiles::open(FileSystem::system(), directory.path()), UsageError);
  std::filesystem::remove(directory.path() / "2.safetensors");
  EXPECT_THROW(WeightFiles::open(FileSystem::system(), directory.path()), UsageError);
}

template <typename T>
std::string bytes_of(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

TEST(Convert, Every16BitFloatIsUnchangedByConversionToFp32AndBack) {
  for (const DType half : {DType::kBFloat16, DType::kFloat16}) {
    ASSERT_TRUE(is_exactly_convertible(DType::kFloat32, half));
    ASSERT_FALSE(is_exactly_convertible(half, DType::kFloat32));
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      // GCC warns about the wider loads of convert() from a single uint16_t, so the array has four elements.
      const std::array<uint16_t, 4> padded{static_cast<uint16_t>(bits)};
      const uint16_t& in = padded[0];
      float wide = 0;
      uint16_t out = 0;
      convert(DType::kFloat32, reinterpret_cast<std::byte*>(&wide), half, reinterpret_cast<const std::byte*>(&in), 1);
      convert(half, reinterpret_cast<std::byte*>(&out), DType::kFloat32, reinterpret_cast<const std::byte*>(&wide), 1);
      const double value = element_value(half, reinterpret_cast<const std::byte*>(padded.data()));
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(wide)) << bits;
      } else {
        ASSERT_EQ(static_cast<double>(wide), value) << bits;
        ASSERT_EQ(out, in) << bits;
      }
    }
  }
}

TEST(Convert, RoundsToNearestAndReportsUnsupportedPairs) {
  const double values[] = {1.0 + 0x1p-24, 1.0 + 0x1.8p-23, 1e300, -0.0};
  float narrow[4];
  convert(DType::kFloat32, reinterpret_cast<std::byte*>(narrow), DType::kFloat64,
          reinterpret_cast<const std::byte*>(values), 4);
  EXPECT_EQ(narrow[0], 1.0f);
  EXPECT_EQ(narrow[1], 1.0f + 0x1p-22f);
  EXPECT_EQ(narrow[2], std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::signbit(narrow[3]));
  EXPECT_FALSE(is_convertible(DType::kBFloat16, DType::kFloat64));
  EXPECT_FALSE(is_convertible(DType::kFloat32, DType::kInt16));
  EXPECT_FALSE(is_convertible(DType::kUInt8, DType::kFloat32));
  EXPECT_TRUE(is_exactly_convertible(DType::kFloat64, DType::kFloat32));
  EXPECT_FALSE(is_exactly_convertible(DType::kBFloat16, DType::kFloat16));
}

/// Loads a file with fp32, bf16 and fp64 tensors as fp32. The values must be the same for any number of ranks.
TEST(Weights, LoadIntoTheShardsOfAnyWorld) {
  TemporaryDirectory directory;
  const auto path = directory.path() / "w.safetensors";
  const std::string data =
      bytes_of(1.5f) + bytes_of(-2.0f) + bytes_of(uint16_t{0x3fc0}) + bytes_of(uint16_t{0xc000}) + bytes_of(0.1);
  test::write_file(path, file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                 R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},)"
                                 R"("c":{"dtype":"F64","shape":[],"data_offsets":[12,20]}})",
                                 data));
  const std::vector<test::TestTensor> wanted{{"parameters/a", {2}, DType::kFloat32},
                                             {"parameters/b", {2}, DType::kFloat32},
                                             {"parameters/c", {}, DType::kFloat32},
                                             {"optimizer/a/exp_avg", {2}, DType::kFloat32}};
  const std::map<std::string, std::vector<float>> expected{
      {"parameters/a", {1.5f, -2.0f}}, {"parameters/b", {1.5f, -2.0f}}, {"parameters/c", {0.1f}}};
  for (const int rank_count : {1, 2, 3}) {
    const auto failures = test::on_ranks(rank_count, [&](Communicator& communicator) {
      test::Shard shard(wanted, rank_count, communicator.rank(), test::Partition::kRandom, 9);
      shard.poison();
      load_weights(shard.state(), communicator, path);
      for (const StateTensor& tensor : shard.state().tensors) {
        for (const StatePiece& piece : tensor.pieces) {
          for (int64_t i = 0; i < piece.count; ++i) {
            float value;
            std::memcpy(&value, piece.bytes + 4 * i, 4);
            if (!expected.contains(tensor.path)) {
              EXPECT_EQ(piece.bytes[4 * i], std::byte{0xa5}) << "the load modified optimizer state";
            } else {
              EXPECT_EQ(value, expected.at(tensor.path)[static_cast<size_t>(piece.offset + i)]) << tensor.path;
            }
          }
        }
      }
    });
    EXPECT_EQ(failures, std::vector<std::string>(static_cast<size_t>(rank_count)));
  }
}

TEST(Weights, WeightsThatDoNotFitAreListedAndTheStateIsUnmodified) {
  TemporaryDirectory directory;
  const auto path = directory.path() / "w.safetensors";
  test::write_file(path, file_of(R"({"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                                 R"("x":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                                 "123456789012"));
  const std::vector<test::TestTensor> wanted{{"parameters/a", {2}, DType::kFloat32},
                                             {"parameters/b", {2}, DType::kFloat32}};
  const auto failures = test::on_ranks(2, [&](Communicator& communicator) {
    test::Shard shard(wanted, 2, communicator.rank(), test::Partition::kBlocks, 9);
    shard.poison();
    try {
      load_weights(shard.state(), communicator, path);
    } catch (const UsageError&) {
      EXPECT_TRUE(shard.is_poisoned());
      throw;
    }
  });
  EXPECT_EQ(failures[0], failures[1]);
  for (const char* words : {"a is float32 1x2 in the file and float32 2 in the model", "b is missing from the file",
                            "x is only in the file"}) {
    EXPECT_NE(failures[0].find(words), std::string::npos) << failures[0];
  }
}

/// Tries an index file that is absent, a pipe or a socket, and a tensor of a type that cannot be converted.
TEST(Weights, WeightsThatCannotBeReadAreRejected) {
  TemporaryDirectory directory;
  const auto index = directory.path() / "model.safetensors.index.json";
  const auto error_of = [&](const std::filesystem::path& path) {
    return test::on_ranks(1, [&](Communicator& communicator) {
      test::Shard shard({{"parameters/a", {1}, DType::kFloat32}}, 1, 0, test::Partition::kBlocks, 9);
      load_weights(shard.state(), communicator, path);
    })[0];
  };
  EXPECT_NE(error_of(index).find("cannot open"), std::string::npos) << error_of(index);
  ASSERT_EQ(::mkfifo(index.c_str(), 0600), 0);
  EXPECT_NE(error_of(index).find("is not an index of weights"), std::string::npos) << error_of(index);
  std::filesystem::remove(index);
  ASSERT_EQ(::mknod(index.c_str(), S_IFSOCK | 0600, 0), 0);  // a socket, which cannot be opened
  EXPECT_NE(error_of(index).find("cannot open"), std::string::npos) << error_of(index);
  std::filesystem::remove(index);
  test::write_file(directory.path() / "w.safetensors",
                   file_of(header("a", R"("dtype":"I64","shape":[1],"data_offsets":[0,8])"), "12345678"));
  EXPECT_NE(error_of(directory.path() / "w.safetensors").find("I64"), std::string::npos)
      << error_of(directory.path() / "w.safetensors");
}

TEST(Export, ThrowsIfTheFileExistsOrCannotBeWritten) {
  TemporaryDirectory directory;
  const auto error_of = [&](const char* tensor, DType dtype, const std::filesystem::path& to) -> std::string {
    const auto saved = directory.path() / fmt::format("of {} {}", name(dtype), tensor);
    if (!std::filesystem::exists(saved)) test::save_test_state(saved, {{fmt::format("{}/a", tensor), {3}, dtype}}, 1);
    try {
      export_weights(open_verified(saved / "step-00000100"), to, "w.safetensors", DType::kBFloat16);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto out = directory.path() / "out";
  EXPECT_EQ(error_of("parameters", DType::kFloat32, out), "");
  EXPECT_EQ(error_of("parameters", DType::kFloat32, out),
            (out / "w.safetensors").string() + " already exists: remove it, or choose another path");
  const auto nothing = directory.path() / "nothing";
  EXPECT_EQ(error_of("parameters", DType::kUInt8, nothing),
            "tensor a has the dtype uint8, which cannot be converted to bfloat16");
  EXPECT_EQ(error_of("optimizer", DType::kFloat32, nothing), "the checkpoint has no parameters to export");
  EXPECT_FALSE(std::filesystem::exists(nothing));
  EXPECT_NE(error_of("parameters", DType::kFloat32, out / "w.safetensors" / "in").find("cannot create directory "),
            std::string::npos);
}

/// A finite value must not silently become infinite. Infinity itself can be converted.
TEST(Export, ThrowsIfAValueOverflows) {
  TemporaryDirectory directory;
  float values[] = {-65504, std::numeric_limits<float>::infinity(), 1e6f};
  const auto saved = test::on_ranks(1, [&](Communicator& communicator) {
    State state{1, {}, {}};
    state.tensors = {{"parameters/a", {3}, DType::kFloat32, {{0, 3, reinterpret_cast<std::byte*>(values)}}}};
    save(state, communicator, directory.path());
  });
  ASSERT_EQ(saved[0], "");
  const CheckpointReader reader = open_verified(directory.path() / checkpoint_name(1));
  try {
    export_weights(reader, directory.path(), "half.safetensors", DType::kFloat16);
    ADD_FAILURE() << "the value was exported";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "element 2 of tensor a is 1e+06, which float16 cannot represent: use another dtype");
  }
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "half.safetensors"));
  EXPECT_NO_THROW(export_weights(reader, directory.path(), "brain.safetensors", DType::kBFloat16));
}

TEST(Weights, MissingTensorsAreZeroWithAllowMissing) {
  TemporaryDirectory directory;
  const auto path = directory.path() / "w.safetensors";
  test::write_file(path, file_of(header("a", kValidFields), "12345678"));
  const std::vector<test::TestTensor> wanted{{"parameters/a", {2}, DType::kFloat32},
                                             {"parameters/b", {2}, DType::kFloat32}};
  const auto failures = test::on_ranks(1, [&](Communicator& communicator) {
    test::Shard shard(wanted, 1, 0, test::Partition::kBlocks, 9);
    shard.poison();
    LoadOptions options;
    options.allow_missing = true;
    const LoadReport report = load_weights(shard.state(), communicator, path, options);
    EXPECT_EQ(report.missing, std::vector<std::string>{"b"});
    EXPECT_EQ(std::memcmp(shard.state().tensors[0].pieces[0].bytes, "12345678", 8), 0);
    const std::byte zeros[8]{};
    EXPECT_EQ(std::memcmp(shard.state().tensors[1].pieces[0].bytes, zeros, 8), 0);
  });
  EXPECT_EQ(failures[0], "");
}

}  // namespace
}  // namespace aliquot
