// Sets options by name and text: tests the accepted values, and the messages for invalid ones.
#include <aliquot/c.h>
#include <gtest/gtest.h>
#include <string>

namespace {

class CapiOptions : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(aliquot_options_create(&options_), ALIQUOT_DONE); }
  void TearDown() override { aliquot_options_free(options_); }

  int set(const char* name, const char* value) { return aliquot_options_set(options_, name, value); }
  void expect_rejected(const char* name, const char* value, const std::string& message) {
    EXPECT_EQ(set(name, value), ALIQUOT_USAGE) << name << " " << value;
    EXPECT_NE(std::string(aliquot_message()).find(message), std::string::npos) << aliquot_message();
  }
  /// Creates an engine with these options on one rank, and returns the status.
  int create_engine() {
    return aliquot_world_threads(
        1,
        [](aliquot_world* world, void* options) {
          aliquot_engine* engine = nullptr;
          const int status = aliquot_engine_create(world, static_cast<aliquot_options*>(options), &engine);
          aliquot_engine_free(engine);
          return status;
        },
        options_, options_);
  }

  aliquot_options* options_ = nullptr;
};

TEST_F(CapiOptions, EveryOptionAcceptsItsDocumentedValues) {
  const std::pair<const char*, const char*> given[] = {{"device", "host"},
                                                       {"world", "threads"},
                                                       {"threads", "1"},
                                                       {"timeout", "12.5"},
                                                       {"zero-stage", "2"},
                                                       {"replicas", "1"},
                                                       {"accumulate", "3"},
                                                       {"accumulate-into", "shard"},
                                                       {"prefetch", "2"},
                                                       {"keep-gathered", "1"},
                                                       {"recompute", "none"},
                                                       {"gather", "copy"},
                                                       {"memory-budget", "1.5GiB"},
                                                       {"memory-budget", "2 GB"},
                                                       {"max-skipped", "10"},
                                                       {"check-state", "on"},
                                                       {"check", "on"},
                                                       {"check", "off"},
                                                       {"update-in-backward", "off"},
                                                       {"offload", "disk:/tmp"},
                                                       {"offload-parameters", "none"},
                                                       {"reproducible", "off"},
                                                       {"quantize", "gradients"},
                                                       {"precision", "bf16"},
                                                       {"gradients", "bf16"},
                                                       {"reduce-precision", "fp32"},
                                                       {"master", "fp32"},
                                                       {"optimizer", "adamw"},
                                                       {"lr", "1e-3"},
                                                       {"betas", "0.9,0.99"},
                                                       {"eps", "1e-7"},
                                                       {"weight-decay", "0"},
                                                       {"state", "bf16"},
                                                       {"clip", "0.5"},
                                                       {"seed", "7"}};
  for (const auto& [name, value] : given) EXPECT_EQ(set(name, value), ALIQUOT_DONE) << aliquot_message();
  EXPECT_EQ(create_engine(), ALIQUOT_DONE) << aliquot_message();
}

TEST_F(CapiOptions, EveryOptimizerIsCreated) {
  for (const char* name : {"adamw", "adam", "adamw8bit", "lion"}) {
    EXPECT_EQ(set("optimizer", name), ALIQUOT_DONE);
    EXPECT_EQ(set("betas", "0.9,0.95"), ALIQUOT_DONE);
    EXPECT_EQ(create_engine(), ALIQUOT_DONE) << aliquot_message();
  }
  EXPECT_EQ(set("optimizer", "sgd"), ALIQUOT_DONE);
  EXPECT_EQ(create_engine(), ALIQUOT_USAGE);
  EXPECT_STREQ(aliquot_message(), "the option betas does not apply to the optimizer sgd");
  EXPECT_EQ(set("optimizer", "muon"), ALIQUOT_DONE);
  EXPECT_EQ(set("muon-lr", "0.05"), ALIQUOT_DONE);
  EXPECT_EQ(set("muon-products", "bf16"), ALIQUOT_DONE);
  EXPECT_EQ(create_engine(), ALIQUOT_DONE) << aliquot_message();
  EXPECT_EQ(set("optimizer", "lion"), ALIQUOT_DONE);
  EXPECT_EQ(create_engine(), ALIQUOT_USAGE);
  EXPECT_STREQ(aliquot_message(), "the option muon-lr does not apply to the optimizer lion");
}

TEST_F(CapiOptions, InvalidValuesAreReportedWithTheOptionName) {
  expect_rejected("zero-stge", "3", "unknown option \"zero-stge\": valid options are device, world, threads");
  expect_rejected("zero-stge", "3", ", seed. Did you mean zero-stage?");
  expect_rejected("zero-stage", "three", "the option zero-stage: invalid value 'three': expected one of 0, 1, 2, 3.");
  expect_rejected("zero-stage", "33", "invalid value '33'");
  expect_rejected("offload", "disk", "expected one of none, host, disk:DIR");
  expect_rejected("offload", "disk:", "expected a directory");
  expect_rejected("lr", "-1", "the option lr");
  expect_rejected("lr", "nan", "the option lr");
  expect_rejected("lr", "inf", "expected a number from 0 to 1e+29");
  expect_rejected("betas", "0.9", "expected two numbers");
  expect_rejected("betas", "0.9,1", "the option betas: invalid value '1': expected a number of at least 0 and below 1");
  expect_rejected("momentum", "1",
                  "the option momentum: invalid value '1': expected a number of at least 0 and below 1");
  expect_rejected("gather", "views", "expected one of auto, view, copy");
  expect_rejected("reproducible", "maybe", "expected on or off");
  expect_rejected("quantize", "all", "expected one of none, weights, gradients, both");
  expect_rejected("memory-budget", "2 parsecs", "number of bytes");
  expect_rejected("memory-budget", "1e30TiB", "number of bytes");
  EXPECT_EQ(aliquot_options_set(options_, nullptr, "3"), ALIQUOT_USAGE);
  EXPECT_EQ(aliquot_options_set(nullptr, "zero-stage", "3"), ALIQUOT_USAGE);
}

TEST_F(CapiOptions, EngineRejectsConflictingOptions) {
  expect_rejected("optimizer", "best", "expected one of adamw, adam, adamw8bit, lion, sgd, muon");
  EXPECT_EQ(set("optimizer", "sgd"), ALIQUOT_DONE);
  EXPECT_EQ(set("momentum", "0.5"), ALIQUOT_DONE);
  EXPECT_EQ(set("nesterov", "on"), ALIQUOT_DONE);
  EXPECT_EQ(create_engine(), ALIQUOT_DONE) << aliquot_message();
  EXPECT_EQ(set("update-in-backward", "on"), ALIQUOT_DONE);
  EXPECT_EQ(create_engine(), ALIQUOT_USAGE);
  EXPECT_EQ(std::string(aliquot_message()).rfind("option update-in-backward updates units", 0), 0u)
      << aliquot_message();
}

}  // namespace
