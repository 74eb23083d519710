// Checks that other programs can read state.h5: h5dump of HDF5, and h5py if it is installed.
#include <array>
#include <cstdio>
#include <cstring>
#include <gtest/gtest.h>

#include "checkpoint/save.h"
#include "kernels/system/file_system.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

/// Returns the output of a command, and whether its exit code was 0.
std::pair<std::string, bool> output_of(const std::string& command) {
  FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer{};
  for (size_t count = 0; (count = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    text.append(buffer.data(), count);
  return {text, ::pclose(pipe) == 0};
}

class Readers : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto failures = test::on_ranks(1, [&](Communicator& communicator) {
      float weights[] = {0, 1, 2, 3, 4, 5.5};
      uint16_t halves[] = {0x3fc0, 0xc000};  // 1.5 and -2 in bf16
      int16_t low[] = {-3};
      State state{100, {}, {{"seed", int64_t{7}}, {"schedule", std::string("cosine")}}};
      state.tensors = {
          {"parameters/h.0.w", {2, 3}, DType::kFloat32, {{0, 6, reinterpret_cast<std::byte*>(weights)}}},
          {"optimizer/h.0.w/exp_avg", {2}, DType::kBFloat16, {{0, 2, reinterpret_cast<std::byte*>(halves)}}},
          {"optimizer/h.0.w/low", {1}, DType::kInt16, {{0, 1, reinterpret_cast<std::byte*>(low)}}}};
      save(state, communicator, directory_.path());
    });
    ASSERT_EQ(failures[0], "");
  }

  std::string file() const { return (directory_.path() / "step-00000100" / "state.h5").string(); }

  test::TemporaryDirectory directory_;
};

TEST_F(Readers, H5dumpReadsTheFile) {
  const std::string program = ALIQUOT_H5DUMP;
  if (program.empty()) GTEST_SKIP() << "h5dump is not installed (on Debian: apt install hdf5-tools)";
  const auto [header, read_header] = output_of(program + " -H " + file());
  EXPECT_TRUE(read_header) << header;
  for (const char* words : {"DATASET \"h.0.w\"", "H5T_IEEE_F32LE", "( 2, 3 ) / ( 2, 3 )", "GROUP \"optimizer\"",
                            "16-bit little-endian floating-point", "ATTRIBUTE \"step\"", "H5T_STD_I16LE"}) {
    EXPECT_NE(header.find(words), std::string::npos) << words << " in " << header;
  }
  const auto [weights, read_weights] = output_of(program + " -y -w 200 -d /parameters/h.0.w " + file());
  EXPECT_TRUE(read_weights);
  EXPECT_NE(weights.find("0, 1, 2,"), std::string::npos) << weights;
  EXPECT_NE(weights.find("3, 4, 5.5"), std::string::npos) << weights;
  const auto [halves, read_halves] = output_of(program + " -y -d /optimizer/h.0.w/exp_avg " + file());
  EXPECT_TRUE(read_halves);
  EXPECT_NE(halves.find("1.5, -2"), std::string::npos) << halves;
}

TEST_F(Readers, H5pyReadsTheFile) {
  if (!output_of("python3 -c 'import h5py'").second) GTEST_SKIP() << "h5py is not installed (pip install h5py)";
  const std::string script =
      "import h5py; f = h5py.File('" + file() +
      "', 'r'); print(f['parameters/h.0.w'][1].tolist(), "
      "f['optimizer/h.0.w/exp_avg'].dtype, f['optimizer/h.0.w/exp_avg'][:].tolist(), f['optimizer/h.0.w/low'][0], "
      "f.attrs['step'], f.attrs['seed'], f.attrs['schedule'].decode())";
  const auto [text, worked] = output_of("python3 -c \"" + script + "\"");
  EXPECT_TRUE(worked) << text;
  EXPECT_EQ(text, "[3.0, 4.0, 5.5] float32 [1.5, -2.0] -3 100 7 cosine\n");
}

}  // namespace
}  // namespace aliquot
