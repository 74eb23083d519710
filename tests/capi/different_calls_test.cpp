// Ranks of the C interface make different collective calls. Every pair of calls must end in a documented status, and in
// a message that says that the ranks differ.
#include <algorithm>
#include <aliquot/c.h>
#include <array>
#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <span>
#include <string>
#include <vector>

namespace {

struct Rank {
  aliquot_world* world = nullptr;
  const aliquot_options* options = nullptr;
  aliquot_engine* engine = nullptr;
  float *weight = nullptr, *gradient = nullptr;
};

int fill_with_half(void*, const char*, int64_t, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = 0.5f;
  return ALIQUOT_DONE;
}

/// Runs calls until one fails, and returns its status.
int in_order(std::initializer_list<std::function<int()>> calls) {
  for (const auto& call : calls) {
    if (const int status = call(); status != ALIQUOT_DONE) return status;
  }
  return ALIQUOT_DONE;
}

int make_engine(Rank& rank, aliquot_engine** engine) {
  const int64_t extent[] = {8};
  const aliquot_parameter weight = {"weight", 1, extent, &rank.weight, &rank.gradient, 0, 0, 0, 0, 0};
  int unit = 0;
  return in_order({[&] { return aliquot_engine_create(rank.world, rank.options, engine); },
                   [&] { return aliquot_add_unit(*engine, "layer", &unit); },
                   [&] { return aliquot_add_parameter(*engine, unit, &weight); },
                   [&] { return aliquot_materialize(*engine, fill_with_half, nullptr); }});
}

struct Call {
  const char* name;
  std::function<int(Rank&)> run;
};

class DifferentCalls : public testing::Test {
 protected:
  DifferentCalls() { std::filesystem::remove_all(folder_); }
  ~DifferentCalls() override { std::filesystem::remove_all(folder_); }

  std::vector<Call> calls() const {
    const std::string folder = folder_;
    return {
        {"sum",
         [](Rank& r) {
           double one = 1;
           return aliquot_sum(r.world, &one, 1);
         }},
        {"evaluate", [](Rank& r) { return aliquot_evaluate(r.engine, 0); }},
        {"sum_losses",
         [](Rank& r) {
           double loss = 1;
           return aliquot_sum_losses(r.engine, 1, &loss);
         }},
        {"step",
         [](Rank& r) {
           return in_order({[&] { return aliquot_micro_batch(r.engine); }, [&] { return aliquot_abandon(r.engine); },
                            [&] { return aliquot_step(r.engine, nullptr); }});
         }},
        {"read",
         [](Rank& r) {
           std::array<float, 8> values{};
           return aliquot_read(r.engine, "layer.weight", 8, values.data());
         }},
        {"check_copies", [](Rank& r) { return aliquot_check_copies(r.engine); }},
        {"set_trainable", [](Rank& r) { return aliquot_set_trainable(r.engine, "layer", 0); }},
        {"save", [folder](Rank& r) { return aliquot_save(r.engine, (folder + "/new").c_str(), 0); }},
        {"load", [folder](Rank& r) { return aliquot_load(r.engine, (folder + "/saved/step-0").c_str()); }},
        {"load_newest",
         [folder](Rank& r) { return aliquot_load_newest(r.engine, (folder + "/saved").c_str(), nullptr); }},
        {"load_weights", [folder](Rank& r) { return aliquot_load_weights(r.engine, (folder + "/absent").c_str()); }},
        {"materialize",
         [](Rank& r) {
           aliquot_engine* other = nullptr;
           const int status = make_engine(r, &other);
           aliquot_engine_free(other);
           return status;
         }},
    };
  }

  struct Result {
    std::array<int, 2> status{};
    std::array<std::string, 2> message;
  };

  /// Rank r of two ranks makes call number r.
  Result run(const Call& first, const Call& second) {
    struct Context {
      std::array<const Call*, 2> calls;
      aliquot_options* options;
      Result result;
    } context{{&first, &second}, nullptr, {}};
    EXPECT_EQ(aliquot_options_create(&context.options), ALIQUOT_DONE);
    for (const auto& [name, value] : {std::pair{"timeout", "0.5"}, {"zero-stage", "1"}})
      EXPECT_EQ(aliquot_options_set(context.options, name, value), ALIQUOT_DONE);
    const auto body = [](aliquot_world* world, void* data) -> int {
      auto& given = *static_cast<Context*>(data);
      Rank rank{.world = world, .options = given.options};
      const auto number = static_cast<std::size_t>(aliquot_rank(world));
      const int status =
          in_order({[&] { return make_engine(rank, &rank.engine); }, [&] { return given.calls[number]->run(rank); }});
      given.result.status[number] = status;
      if (status != ALIQUOT_DONE) given.result.message[number] = aliquot_message();
      aliquot_engine_free(rank.engine);
      return status;
    };
    (void)aliquot_world_threads(2, body, &context, context.options);
    aliquot_options_free(context.options);
    return context.result;
  }

  /// A call that needs no other rank may succeed.
  static void expect_documented(const Result& result, const std::string& calls) {
    constexpr std::array kTexts{"all ranks must make the same calls in the same order", "ranks disagree at",
                                "has returned from its function", "never arrived"};
    for (const auto& [status, message] :
         {std::pair(result.status[0], result.message[0]), std::pair(result.status[1], result.message[1])}) {
      const bool explains = std::ranges::any_of(
          kTexts, [&, &text = message](const char* part) { return text.find(part) != std::string::npos; });
      EXPECT_TRUE(status == ALIQUOT_DONE || (status == ALIQUOT_FAULT && explains))
          << calls << ": " << status << message;
    }
    EXPECT_NE(result.status[0] + result.status[1], ALIQUOT_DONE) << calls;
  }

  std::string folder_ = testing::TempDir() + "aliquot_different_calls";
};

/// Without the check of the purpose, a rank would read bytes of another call as a status or a size.
TEST_F(DifferentCalls, EndInADocumentedStatusAndMessage) {
  const std::vector<Call> all = calls();
  const Call save{"save", [this](Rank& r) { return aliquot_save(r.engine, (folder_ + "/saved").c_str(), 0); }};
  ASSERT_EQ(run(save, save).status, (std::array{ALIQUOT_DONE + 0, ALIQUOT_DONE + 0}));
  for (const Call& first : all) {
    for (const Call& second : std::span(&first, all.data() + all.size())) {
      if (&first == &second) continue;
      expect_documented(run(first, second), std::string(first.name) + " and " + second.name);
    }
  }
}

}  // namespace
