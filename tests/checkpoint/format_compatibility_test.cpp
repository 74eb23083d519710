// Loads the checkpoints of all released format versions, which are stored in tests/checkpoint/kept. Every later build
// must be able to load them. To store one that this build writes:
// ALIQUOT_KEEP=tests/checkpoint/kept/version-N checkpoint_format_compatibility_test --gtest_also_run_disabled_tests
#include <cstdlib>
#include <cstring>
#include <gtest/gtest.h>

#include "checkpoint/file/hdf5_structure.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/verify.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

constexpr int64_t kStep = 1234;

/// A state with tensors of every dtype. Byte i of tensor t is (7 i + 31 t) mod 251, so the data can be recomputed.
class ReferenceState {
 public:
  ReferenceState() {
    const std::vector<test::TestTensor> shapes{{"parameters/h.0.attn.weight", {24, 50}, DType::kFloat32},
                                               {"parameters/h.0.attn.bias", {50}, DType::kBFloat16},
                                               {"parameters/scalar", {}, DType::kFloat64},
                                               {"parameters/empty", {0, 3}, DType::kFloat32},
                                               {"optimizer/h.0.attn.weight/exp_avg", {24, 50}, DType::kFloat16},
                                               {"optimizer/h.0.attn.weight/codes", {1200}, DType::kUInt8},
                                               {"optimizer/h.0.attn.weight/low", {24, 50}, DType::kInt16}};
    for (const test::TestTensor& shape : shapes) {
      StateTensor& tensor = state.tensors.emplace_back(StateTensor{shape.path, shape.shape, shape.dtype, {}, nullptr});
      auto& bytes = memory_.emplace_back(static_cast<size_t>(tensor.size_bytes()));
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = expected(state.tensors.size() - 1, i);
      tensor.pieces = {{0, tensor.element_count(), bytes.data(), false}};
    }
    state.step = kStep;
    state.scalars = {{"seed", int64_t{-7}},
                     {"loss_scale", 65536.0},
                     {"schedule", std::string("cosine \xc3\xa9")},
                     {"loader_position", std::vector<int64_t>{1, int64_t{1} << 62}},
                     {"history", std::vector<double>{0.1, -0.0, 1e-310}}};
  }

  static std::byte expected(size_t tensor, size_t byte) {
    return static_cast<std::byte>((7 * byte + 31 * tensor) % 251);
  }

  void poison() {
    for (auto& bytes : memory_) std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
    state.step = 0;
    state.scalars.clear();
  }
  void expect_original_data() const {
    for (size_t t = 0; t < memory_.size(); ++t) {
      for (size_t i = 0; i < memory_[t].size(); ++i) ASSERT_EQ(memory_[t][i], expected(t, i)) << t << " byte " << i;
    }
  }

  State state;

 private:
  std::vector<std::vector<std::byte>> memory_;
};

TEST(KeptCheckpoints, OfEveryFormatVersionAreLoaded) {
  int count = 0;
  for (const auto& version : std::filesystem::directory_iterator(ALIQUOT_KEPT_CHECKPOINTS)) {
    SCOPED_TRACE(version.path());
    ++count;
    const auto path = version.path() / checkpoint_name(kStep);
    EXPECT_NO_THROW(verify_checkpoint(path));
    for (const bool fresh : {false, true}) {
      const auto failures = test::on_ranks(1, [&](Communicator& alone) {
        ReferenceState kept;
        const auto scalars = kept.state.scalars;
        kept.poison();
        LoadOptions options;
        options.state_is_fresh = fresh;
        load(kept.state, alone, path, options);
        kept.expect_original_data();
        EXPECT_EQ(kept.state.step, kStep);
        EXPECT_EQ(kept.state.scalars, scalars);
      });
      EXPECT_EQ(failures[0], "");
    }
  }
  EXPECT_GE(count, 1);
}

TEST(KeptCheckpoints, AreByteIdenticalToASaveByThisBuild) {
  const auto kept = std::filesystem::path(ALIQUOT_KEPT_CHECKPOINTS) / "version-1" / checkpoint_name(kStep);
  if (read_manifest(kept).hdf5_version != linked_hdf5_version())
    GTEST_SKIP() << "the kept checkpoint was written with another version of HDF5, which lays out files differently";
  test::TemporaryDirectory directory;
  const auto failures =
      test::on_ranks(1, [&](Communicator& alone) { save(ReferenceState().state, alone, directory.path()); });
  ASSERT_EQ(failures[0], "");
  EXPECT_TRUE(test::read_file(directory.path() / checkpoint_name(kStep) / kStateFile) ==
              test::read_file(kept / kStateFile));
}

/// Writes a checkpoint to the directory ALIQUOT_KEEP, from which it can be added to the stored ones.
TEST(KeptCheckpoints, DISABLED_WriteOne) {
  const char* folder = std::getenv("ALIQUOT_KEEP");
  ASSERT_NE(folder, nullptr) << "ALIQUOT_KEEP is not set: expected a directory to write to";
  const auto failures = test::on_ranks(1, [&](Communicator& alone) { save(ReferenceState().state, alone, folder); });
  EXPECT_EQ(failures[0], "");
}

}  // namespace
}  // namespace aliquot
