// Tests --mesh: its forms, and how it contradicts other options.
#include "apps/options/mesh_option.h"

#include <fstream>
#include <gtest/gtest.h>

#include "apps/options/deepspeed.h"
#include "apps/options/train_options.h"
#include "kernels/system/error.h"
#include "tests/checkpoint/support.h"

namespace aliquot::test {
namespace {

TrainOptions train_options(const std::vector<std::string>& arguments) {
  TrainOptions options;
  parse_train_arguments(options, arguments);
  return options;
}

/// Returns the message of the UsageError, or "none" if the arguments are accepted.
std::string error_of(const std::vector<std::string>& arguments) {
  try {
    train_options(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "none";
}

TEST(MeshOption, ReadsItsOwnText) {
  for (const char* text : {"1x1x1x1", "2x1x4x8", "16x2x64x8"}) EXPECT_EQ(mesh_text(*parse_mesh(text).given), text);
  const Mesh mesh = *parse_mesh("2x3x5x7").given;
  EXPECT_EQ(mesh, (Mesh{.pipeline = 2, .replica = 3, .shard = 5, .tensor = 7}));
  EXPECT_FALSE(parse_mesh("2x3x5x7").automatic);
  EXPECT_TRUE(parse_mesh("auto").automatic);
  EXPECT_FALSE(parse_mesh("auto").given);
}

TEST(MeshOption, RefusesOtherForms) {
  for (const char* bad : {"", "Auto", "2", "2x2", "2x2x2", "2x2x2x2x2", "2x2x2x", "x2x2x2", "2x-1x2x2", "2x2x2x2 ",
                          "2*2*2*2", "0x1x1x1", "65537x1x1x1", "1024x1024x2x1", "2x2x2xk"}) {
    EXPECT_THROW(parse_mesh(bad), UsageError) << bad;
  }
  EXPECT_EQ(error_of({"--mesh", "2x2"}),
            "--mesh: invalid value '2x2': expected auto, or the numbers of pipeline stages, replicas, ranks of a shard "
            "group and ranks of a tensor group, each from 1 to 65536, for example 2x1x4x8.");
  EXPECT_NE(error_of({"--mesh", "0x2x1x1"}).find("--mesh: invalid value '0x2x1x1'"), std::string::npos);
}

TEST(MeshOption, SetsTheOtherOptions) {
  const TrainOptions options = train_options({"--mesh", "2x3x5x7"});
  EXPECT_EQ(options.engine.pipeline, 2);
  EXPECT_EQ(options.engine.replicas, 3);
  EXPECT_EQ(options.engine.tensor, 7);
  EXPECT_EQ(options.ranks, 2 * 3 * 5 * 7);
}

TEST(MeshOption, AcceptsOptionsThatAgree) {
  EXPECT_EQ(error_of({"--mesh", "2x3x5x7", "--pipeline", "2", "--replicas", "3", "--tensor", "7", "--ranks", "210"}),
            "none");
}

TEST(MeshOption, NamesBothContradictingOptions) {
  const std::string end = ": leave one of them out.";
  EXPECT_EQ(error_of({"--mesh", "2x1x2x2", "--pipeline", "1"}), "--mesh 2x1x2x2 contradicts --pipeline 1" + end);
  EXPECT_EQ(error_of({"--replicas", "2", "--mesh", "2x1x2x2"}), "--mesh 2x1x2x2 contradicts --replicas 2" + end);
  EXPECT_EQ(error_of({"--mesh", "2x1x2x2", "--tensor", "4"}), "--mesh 2x1x2x2 contradicts --tensor 4" + end);
  EXPECT_EQ(error_of({"--mesh", "2x1x2x2", "--ranks", "4"}), "--mesh 2x1x2x2 contradicts --ranks 4" + end);
}

/// A configuration file, in the form that --dry-run prints.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) { std::ofstream(path()) << text; }
  std::string path() const { return directory_.path() / "run.ini"; }

 private:
  TemporaryDirectory directory_;
};

TEST(MeshOption, ReplacesTheMeshOfAConfigurationFile) {
  const ConfigFile file(
      "mesh = 2x1x2x2\npipeline = 2\nreplicas = 1\ntensor = 2\nranks = 8\naccumulate = 4\n"
      "global-batch = 16\nlr = 0.5\n");
  const TrainOptions options = train_options({"--config", file.path(), "--mesh", "1x2x2x1"});
  EXPECT_EQ(options.engine.pipeline, 1);
  EXPECT_EQ(options.engine.replicas, 2);
  EXPECT_EQ(options.engine.tensor, 1);
  EXPECT_EQ(options.ranks, 4);
  EXPECT_EQ(options.engine.accumulate, 1) << "follows from the global batch of the file";
  EXPECT_EQ(options.global_batch, 16);
  EXPECT_EQ(options.optimizer.lr, 0.5);
  EXPECT_NE(error_of({"--config", file.path(), "--tensor", "1"}).find("contradicts --tensor 1"), std::string::npos);
}

/// A file may list all options. So a value in a file restricts a search only if it is not the default.
TEST(MeshOption, ASearchIgnoresDefaultsInAConfigurationFile) {
  const ConfigFile file(
      "mesh = 2x1x2x2\npipeline = 2\ntensor = 2\nranks = 8\naccumulate = 4\nglobal-batch = 16\n"
      "zero-stage = 1\nmicro-batch = " +
      std::to_string(TrainOptions().micro_batch) + "\n");
  const TrainOptions options = train_options({"--config", file.path(), "--mesh", "auto"});
  EXPECT_TRUE(options.mesh.automatic);
  EXPECT_FALSE(options.mesh.given);
  EXPECT_EQ(options.ranks, 8);
  EXPECT_FALSE(options.mesh.keeps("zero-stage")) << "belongs to the mesh of the file";
  for (const char* name : {"micro-batch", "pipeline", "tensor", "accumulate"})
    EXPECT_FALSE(options.mesh.keeps(name)) << name;
}

TEST(MeshOption, ASearchKeepsOtherValuesOfAConfigurationFile) {
  const ConfigFile file("zero-stage = 1\nmicro-batch = " + std::to_string(TrainOptions().micro_batch) + "\n");
  const TrainOptions options = train_options({"--config", file.path(), "--mesh", "auto"});
  EXPECT_TRUE(options.mesh.keeps("zero-stage"));
  EXPECT_FALSE(options.mesh.keeps("micro-batch"));
}

TEST(MeshOption, ASearchKeepsTheOptionsThatWereGiven) {
  const TrainOptions options = train_options({"--mesh", "auto", "--tensor", "2", "--zero-stage", "3"});
  EXPECT_TRUE(options.mesh.keeps("tensor"));
  EXPECT_TRUE(options.mesh.keeps("zero-stage"));
  EXPECT_FALSE(options.mesh.keeps("pipeline"));
  EXPECT_EQ(options.engine.tensor, 2);
}

}  // namespace
}  // namespace aliquot::test
