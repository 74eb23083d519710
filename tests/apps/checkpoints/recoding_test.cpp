// Loads 8-bit moments of a checkpoint into a state with floats, and floats into a state with 8-bit moments. For every
// partition over ranks, with and without `state_is_fresh`, the result must equal a conversion of the full tensor at
// once.
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <random>

#include "checkpoint/file/convert.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "optim/update/moment_code.h"
#include "sharding/state_pieces.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using test::Shard;
using test::TestTensor;
using Bytes = std::vector<std::byte>;
using Contents = std::map<std::string, Bytes>;  // the bytes of each full tensor, by path

struct Moment {
  const char* path;
  const char* state;
  std::vector<int64_t> shape;
  int64_t count() const { return *checked_element_count(shape); }
  int64_t blocks() const { return (count() + kBlockElements - 1) / kBlockElements; }
  std::string scales() const { return std::string(path) + "_scale"; }
};

/// Two tensors are larger than one conversion chunk and not a multiple of a block. One is smaller than a block, and one
/// is exactly one block.
const std::vector<Moment>& moments() {
  static const std::vector<Moment> all{{"optimizer/w/exp_avg", "exp_avg", {1051, 1001}},
                                       {"optimizer/w/exp_avg_sq", "exp_avg_sq", {1051, 1001}},
                                       {"optimizer/b/exp_avg", "exp_avg", {13}},
                                       {"optimizer/b/exp_avg_sq", "exp_avg_sq", {256}}};
  return all;
}

std::vector<TestTensor> as_floats(DType dtype) {
  std::vector<TestTensor> shapes;
  for (const Moment& each : moments()) shapes.push_back({each.path, each.shape, dtype});
  return shapes;
}

std::vector<TestTensor> as_codes() {
  std::vector<TestTensor> shapes;
  for (const Moment& each : moments()) {
    shapes.push_back({each.path, each.shape, DType::kUInt8});
    shapes.push_back({each.scales(), {each.blocks()}, DType::kFloat32});
  }
  return shapes;
}

Bytes to_bytes(const auto& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// Values over several orders of magnitude. Second moments are not negative. The third block of each tensor is zero.
std::vector<float> values_of(const Moment& moment) {
  std::mt19937 random(static_cast<unsigned>(moment.count()) + (moment.state == std::string("exp_avg") ? 1u : 2u));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(moment.count()));
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = i / kBlockElements == 2 ? 0.0f : normal(random) * std::exp(2.0f * normal(random));
    values[i] = moment.state == std::string("exp_avg") ? value : value * value;
  }
  return values;
}

Contents floats(DType dtype) {
  Contents contents;
  for (const Moment& each : moments()) {
    const auto from = to_bytes(values_of(each));
    Bytes to(static_cast<size_t>(each.count() * element_bytes(dtype)));
    convert(dtype, to.data(), DType::kFloat32, from.data(), each.count());
    contents[each.path] = to;
  }
  return contents;
}

/// Computes the expected result: encodes each full tensor block by block.
Contents coded(const Contents& from, DType dtype) {
  Contents contents;
  for (const Moment& each : moments()) {
    std::vector<float> values(static_cast<size_t>(each.count()));
    convert(DType::kFloat32, reinterpret_cast<std::byte*>(values.data()), dtype, from.at(each.path).data(),
            each.count());
    std::vector<uint8_t> codes(values.size());
    std::vector<float> scales;
    for (size_t at = 0; at < values.size(); at += kBlockElements) {
      const auto block = std::span(values).subspan(at, std::min<size_t>(kBlockElements, values.size() - at));
      scales.push_back(moment_code(each.state)->scale_of(block));
      moment_code(each.state)->encode(block, scales.back(), codes.data() + at);
    }
    contents[each.path] = to_bytes(codes);
    contents[each.scales()] = to_bytes(scales);
  }
  return contents;
}

Contents decoded(const Contents& from, DType dtype) {
  Contents contents;
  for (const Moment& each : moments()) {
    const auto* codes = reinterpret_cast<const uint8_t*>(from.at(each.path).data());
    const auto* scales = reinterpret_cast<const float*>(from.at(each.scales()).data());
    std::vector<float> values(static_cast<size_t>(each.count()));
    for (size_t at = 0; at < values.size(); at += kBlockElements) {
      const size_t count = std::min<size_t>(kBlockElements, values.size() - at);
      moment_code(each.state)->decode({codes + at, count}, scales[at / kBlockElements], values.data() + at);
    }
    Bytes to(static_cast<size_t>(each.count() * element_bytes(dtype)));
    convert(dtype, to.data(), DType::kFloat32, to_bytes(values).data(), each.count());
    contents[each.path] = to;
  }
  return contents;
}

/// Calls `each` for every run of every piece. The arguments are the tensor, the bytes of the run, the bytes of the same
/// elements in `contents`, and the number of bytes of the run.
void for_each_piece(const State& state, const Contents& contents, const auto& each) {
  for (const StateTensor& tensor : state.tensors) {
    const int64_t width = element_bytes(tensor.dtype);
    for (const StatePiece& piece : tensor.pieces) {
      const int64_t spacing = piece.memory_stride == 0 ? run_elements(piece) : piece.memory_stride;
      for (int64_t i = 0; i < run_count(piece); ++i) {
        const std::byte* in_full = contents.at(tensor.path).data() + (piece.offset + i * piece.stride) * width;
        each(tensor, piece.bytes + i * spacing * width, in_full, static_cast<size_t>(run_elements(piece) * width));
      }
    }
  }
}

/// Sets StateTensor::code of every moment, as the engine does. With this field set, load() may convert between 8-bit
/// codes and floats.
void allow_other_form(State& state) {
  for (StateTensor& tensor : state.tensors) tensor.code = moment_code(tensor.path.substr(tensor.path.rfind('/') + 1));
}

void save_contents(const std::vector<TestTensor>& shapes, const Contents& contents,
                   const std::filesystem::path& directory) {
  const auto failures = test::on_ranks(2, [&](Communicator& ranks) {
    Shard shard(shapes, 2, ranks.rank(), test::Partition::kBlocks, 1);
    for_each_piece(shard.state(), contents, [](const StateTensor&, std::byte* to, const std::byte* from, size_t count) {
      std::memcpy(to, from, count);
    });
    save(shard.state(), ranks, directory);
  });
  ASSERT_EQ(failures, std::vector<std::string>(2));
}

class Recode : public ::testing::TestWithParam<std::tuple<int, bool, test::Partition>> {
 protected:
  /// Loads into a state with `shapes`. Expects that the loaded bytes equal `wanted`, and that the report lists
  /// `message` as its first conversion.
  void expect_loaded(const std::vector<TestTensor>& shapes, const Contents& wanted, bool rounds,
                     const std::string& message) {
    const auto [rank_count, fresh, cut] = GetParam();
    const auto failures = test::on_ranks(rank_count, [&, fresh = fresh, cut = cut](Communicator& ranks) {
      Shard shard(shapes, ranks.rank_count(), ranks.rank(), cut, 3);
      shard.poison();
      allow_other_form(shard.state());
      LoadOptions options;
      options.state_is_fresh = fresh;
      options.allow_rounding = rounds;
      const LoadReport report = load(shard.state(), ranks, directory_.path() / "step-00000100", options);
      EXPECT_EQ(report.converted.size(), moments().size());
      EXPECT_EQ(report.converted.front(), message);
      EXPECT_TRUE(report.extra.empty() && report.missing.empty());
      for_each_piece(shard.state(), wanted,
                     [](const StateTensor& tensor, const std::byte* got, const std::byte* expected, size_t count) {
                       ASSERT_EQ(std::memcmp(got, expected, count), 0) << tensor.path;
                     });
    });
    EXPECT_EQ(failures, std::vector<std::string>(static_cast<size_t>(rank_count)));
  }

  test::TemporaryDirectory directory_;
};

TEST_P(Recode, CodesAreDecodedExactly) {
  const Contents codes = coded(floats(DType::kFloat32), DType::kFloat32);
  save_contents(as_codes(), codes, directory_.path());
  expect_loaded(as_floats(DType::kFloat32), decoded(codes, DType::kFloat32), false,
                "optimizer/b/exp_avg (checkpoint: uint8 with optimizer/b/exp_avg_scale, state: float32)");
  expect_loaded(as_floats(DType::kBFloat16), decoded(codes, DType::kBFloat16), true,
                "optimizer/b/exp_avg (checkpoint: uint8 with optimizer/b/exp_avg_scale, state: bfloat16)");
}

TEST_P(Recode, FloatsAreEncodedAsInTheUpdate) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Contents from = floats(dtype);
    save_contents(as_floats(dtype), from, directory_.path());
    expect_loaded(as_codes(), coded(from, dtype), true,
                  "optimizer/b/exp_avg (checkpoint: " + std::string(name(dtype)) +
                      ", state: uint8 with optimizer/b/exp_avg_scale)");
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Recode,
                         ::testing::Combine(::testing::Values(1, 3), ::testing::Bool(),
                                            ::testing::Values(test::Partition::kBlocks, test::Partition::kRandom,
                                                              test::Partition::kSlices)));

/// The signed 8-bit code can represent 1 but not -1. So a block whose element of largest magnitude is negative gets a
/// smaller scale when it is encoded again. All other blocks keep their bits.
TEST(Recoding, ToFloatsAndBackKeepsBlocksWithTheLargestCode) {
  const Contents codes = coded(floats(DType::kFloat32), DType::kFloat32);
  const Contents again = coded(decoded(codes, DType::kFloat32), DType::kFloat32);
  int64_t same = 0, rescaled = 0;
  for (const Moment& each : moments()) {
    const Bytes &before = codes.at(each.path), &after = again.at(each.path);
    for (size_t at = 0; at < before.size(); at += kBlockElements) {
      const size_t count = std::min<size_t>(kBlockElements, before.size() - at), scale = at / kBlockElements * 4;
      const auto* const begin = before.data() + at;
      const bool zeros = std::memcmp(codes.at(each.scales()).data() + scale, "\0\0\0\0", 4) == 0;
      if (!zeros && std::find(begin, begin + count, std::byte{255}) == begin + count) {
        ++rescaled;
        continue;
      }
      ++same;
      ASSERT_EQ(std::memcmp(begin, after.data() + at, count), 0) << each.path << " block " << at / kBlockElements;
      ASSERT_EQ(std::memcmp(codes.at(each.scales()).data() + scale, again.at(each.scales()).data() + scale, 4), 0);
    }
  }
  EXPECT_GT(same, 6000);
  // About half of the blocks of first moments get a new scale.
  EXPECT_NEAR(static_cast<double>(rescaled), 4110 / 2.0, 200.0);
}

/// Expects that load() into a state with `shapes` throws and changes nothing. Returns the message.
std::string refusal(const std::filesystem::path& directory, const std::vector<TestTensor>& shapes, bool with_code) {
  const auto failures = test::on_ranks(2, [&](Communicator& ranks) {
    Shard shard(shapes, 2, ranks.rank(), test::Partition::kBlocks, 3);
    shard.poison();
    if (with_code) allow_other_form(shard.state());
    try {
      load(shard.state(), ranks, directory / "step-00000100");
    } catch (const UsageError&) {
      EXPECT_TRUE(shard.is_poisoned());
      throw;
    }
  });
  EXPECT_EQ(failures[0], failures[1]);
  return failures[0];
}

TEST(Recoding, IsRejectedWithoutAllowRoundingOrWithoutACode) {
  test::TemporaryDirectory directory;
  save_contents(as_floats(DType::kFloat32), floats(DType::kFloat32), directory.path());
  const char* difference = "optimizer/b/exp_avg (checkpoint: float32 13, state: uint8 13)";
  EXPECT_NE(refusal(directory.path(), as_codes(), true).find(difference), std::string::npos);
  EXPECT_NE(refusal(directory.path(), as_codes(), false).find(difference), std::string::npos);
}

TEST(Recoding, CodesWithMissingOrMisshapenScalesAreRejected) {
  Contents codes = coded(floats(DType::kFloat32), DType::kFloat32);
  for (const bool without : {true, false}) {
    test::TemporaryDirectory directory;
    std::vector<TestTensor> shapes = as_codes();
    for (TestTensor& shape : shapes) {
      if (shape.path == "optimizer/b/exp_avg_scale") shape.shape = {2};  // the tensor has one block, so one scale
    }
    codes["optimizer/b/exp_avg_scale"] = Bytes(8);
    if (without) std::erase_if(shapes, [](const auto& shape) { return shape.path == "optimizer/b/exp_avg_scale"; });
    save_contents(shapes, codes, directory.path());
    const std::string message = refusal(directory.path(), as_floats(DType::kFloat32), true);
    EXPECT_NE(message.find("optimizer/b/exp_avg (checkpoint: uint8 13, state: float32 13)"), std::string::npos)
        << message;
    EXPECT_EQ(message.find("optimizer/w"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace aliquot
