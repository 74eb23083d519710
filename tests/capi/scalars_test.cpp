// Scalars of the program in checkpoints, through the C interface.
#include <aliquot/c.h>
#include <array>
#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string>
#include <string_view>
#include <utility>

namespace {

#define ASSERT_DONE(call) ASSERT_EQ(call, ALIQUOT_DONE) << aliquot_message()
#define EXPECT_REFUSED(call, text) \
  EXPECT_EQ(call, ALIQUOT_USAGE);  \
  EXPECT_NE(std::string(aliquot_message()).find(text), std::string::npos) << aliquot_message()

class CapiScalars : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/aliquot-scalars-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  using Body = std::function<void(aliquot_world*, aliquot_engine*)>;
  /// Runs `body` on each rank, with an engine that has one parameter.
  static void on_ranks(int count, const Body& body, const char* precision = "fp32") {
    const std::pair<const Body&, const char*> given(body, precision);
    const auto run = [](aliquot_world* world, void* context) {
      const auto& [run_body, precision] = *static_cast<const std::pair<const Body&, const char*>*>(context);
      aliquot_options* options = nullptr;
      aliquot_engine* engine = nullptr;
      float *value = nullptr, *gradient = nullptr;
      const int64_t shape[] = {8};
      int unit = 0;
      const int bytes = std::string_view(precision) == "fp16" ? 2 : 4;
      const aliquot_parameter parameter{.name = "w",
                                        .dimensions = 1,
                                        .shape = shape,
                                        .value = &value,
                                        .gradient = &gradient,
                                        .value_bytes = bytes,
                                        .gradient_bytes = 4};
      const auto fill = [](void*, const char*, int64_t, int64_t length, float* values) {
        std::fill_n(values, length, 1.0f);
        return int{ALIQUOT_DONE};
      };
      int status = aliquot_options_create(&options);
      if (status == ALIQUOT_DONE) status = aliquot_options_set(options, "precision", precision);
      if (status == ALIQUOT_DONE) status = aliquot_engine_create(world, options, &engine);
      if (status == ALIQUOT_DONE) status = aliquot_add_unit(engine, "u", &unit);
      if (status == ALIQUOT_DONE) status = aliquot_add_parameter(engine, unit, &parameter);
      if (status == ALIQUOT_DONE) status = aliquot_materialize(engine, fill, nullptr);
      if (status == ALIQUOT_DONE) run_body(world, engine);
      aliquot_engine_free(engine);
      aliquot_options_free(options);
      return status;
    };
    EXPECT_EQ(aliquot_world_threads(count, run, const_cast<void*>(static_cast<const void*>(&given)), nullptr),
              ALIQUOT_DONE)
        << aliquot_message();
  }

  std::string folder_;
};

TEST_F(CapiScalars, AreSavedAndLoadedOnAnotherNumberOfRanks) {
  const std::string name = "a name with \xc3\xbc";
  on_ranks(2, [&](aliquot_world*, aliquot_engine* engine) {
    const int64_t sample = int64_t{1} << 60;
    const std::array<int64_t, 3> grid{4, -5, 6};
    const std::array<double, 2> times{0.1, 1e300};
    ASSERT_DONE(aliquot_set_scalar_integers(engine, "sample", 1, &sample));
    ASSERT_DONE(aliquot_set_scalar_integers(engine, "grid", 3, grid.data()));
    ASSERT_DONE(aliquot_set_scalar_reals(engine, "times", 2, times.data()));
    ASSERT_DONE(aliquot_set_scalar_reals(engine, "time", 1, times.data()));
    ASSERT_DONE(aliquot_set_scalar_text(engine, name.c_str(), "old"));
    ASSERT_DONE(aliquot_set_scalar_text(engine, name.c_str(), "new \xc3\xbc"));
    ASSERT_DONE(aliquot_save(engine, folder_.c_str(), 0));
  });
  on_ranks(3, [&](aliquot_world*, aliquot_engine* engine) {
    std::array<int64_t, 3> integers{};
    std::array<double, 2> reals{};
    int64_t count = 0;
    int present = 1;
    const char* text = nullptr;
    ASSERT_DONE(aliquot_set_scalar_text(engine, "of another run", "lost"));
    ASSERT_DONE(aliquot_load_newest(engine, folder_.c_str(), nullptr));
    ASSERT_DONE(aliquot_has_scalar(engine, "of another run", &present));
    EXPECT_EQ(present, 0);
    ASSERT_DONE(aliquot_scalar_integers(engine, "sample", 3, integers.data(), &count));
    EXPECT_EQ(count, 1);
    EXPECT_EQ(integers[0], int64_t{1} << 60);
    ASSERT_DONE(aliquot_scalar_integers(engine, "grid", 3, integers.data(), nullptr));
    EXPECT_EQ(integers, (std::array<int64_t, 3>{4, -5, 6}));
    ASSERT_DONE(aliquot_scalar_reals(engine, "times", 2, reals.data(), &count));
    EXPECT_EQ(reals, (std::array<double, 2>{0.1, 1e300}));
    ASSERT_DONE(aliquot_scalar_text(engine, name.c_str(), &text));
    EXPECT_STREQ(text, "new \xc3\xbc");
    EXPECT_REFUSED(aliquot_scalar_integers(engine, "update_count", 3, integers.data(), nullptr),
                   "no scalar is named \"update_count\"");
    EXPECT_REFUSED(aliquot_scalar_integers(engine, "grid", 2, integers.data(), nullptr),
                   "the scalar grid has 3 values: expected at most 2, the capacity");
    EXPECT_REFUSED(aliquot_scalar_integers(engine, "times", 3, integers.data(), nullptr),
                   "the scalar times is a list of real numbers: expected integers");
    EXPECT_REFUSED(aliquot_scalar_reals(engine, "sample", 2, reals.data(), nullptr),
                   "the scalar sample is one integer: expected real numbers");
    EXPECT_REFUSED(aliquot_scalar_text(engine, "time", &text), "the scalar time is one real number: expected text");
    // A second save and load keeps them.
    ASSERT_DONE(aliquot_save(engine, (folder_ + "/again").c_str(), 0));
    ASSERT_DONE(aliquot_load(engine, (folder_ + "/again/step-00000000").c_str()));
    ASSERT_DONE(aliquot_scalar_reals(engine, "time", 2, reals.data(), &count));
    EXPECT_EQ(count, 1);
  });
}

TEST_F(CapiScalars, ThoseOfAnEngineWithAnotherPrecisionAreNotOfTheProgram) {
  const auto save = [&](aliquot_world*, aliquot_engine* engine) {
    ASSERT_DONE(aliquot_set_scalar_text(engine, "name", "ring"));
    ASSERT_DONE(aliquot_save(engine, folder_.c_str(), 0));
  };
  on_ranks(1, save, "fp16");
  on_ranks(1, [&](aliquot_world*, aliquot_engine* engine) {
    int present = 0;
    ASSERT_DONE(aliquot_load_newest(engine, folder_.c_str(), nullptr));
    ASSERT_DONE(aliquot_has_scalar(engine, "name", &present));
    EXPECT_EQ(present, 1);
    for (const char* name : {"update_count", "loss_scale", "loss_scale_chances", "loss_scale_good_steps"}) {
      ASSERT_DONE(aliquot_has_scalar(engine, name, &present));
      EXPECT_EQ(present, 0) << name;
    }
  });
}

TEST_F(CapiScalars, InvalidOnesAreRefusedWhenTheyAreSet) {
  on_ranks(1, [&](aliquot_world*, aliquot_engine* engine) {
    const int64_t one = 1;
    for (const char* reserved : {"step", "format_version"}) {
      EXPECT_REFUSED(aliquot_set_scalar_integers(engine, reserved, 1, &one), "is reserved for the checkpoint format");
    }
    EXPECT_REFUSED(aliquot_set_scalar_integers(engine, "", 1, &one), "invalid scalar \"\": its name");
    EXPECT_REFUSED(aliquot_set_scalar_integers(engine, "a/../b", 1, &one), "invalid scalar \"a/../b\": its name");
    EXPECT_REFUSED(aliquot_set_scalar_integers(engine, "n", 0, &one), "has 0 values: expected at least 1");
    EXPECT_REFUSED(aliquot_set_scalar_text(engine, "n", "\xff"), "invalid text of the scalar n: expected UTF-8");
    EXPECT_REFUSED(aliquot_set_scalar_text(engine, "n", nullptr), "text must not be null");
    // Also those that only an engine with fp16 saves.
    for (const std::string taken : {"update_count", "loss_scale", "loss_scale_chances", "loss_scale_good_steps"}) {
      EXPECT_REFUSED(aliquot_set_scalar_text(engine, taken.c_str(), "x"),
                     taken + " is a scalar of the engine: use another name");
    }
  });
}

TEST_F(CapiScalars, DifferentValuesOnTwoRanksAreRefusedBySave) {
  on_ranks(2, [&](aliquot_world* world, aliquot_engine* engine) {
    const int64_t value = 10 + aliquot_rank(world);
    ASSERT_DONE(aliquot_set_scalar_integers(engine, "sample", 1, &value));
    EXPECT_REFUSED(aliquot_save(engine, folder_.c_str(), 0), "sample");
  });
}

}  // namespace
