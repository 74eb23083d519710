// Tests that results with and without offload are bitwise identical, and memory use equals the plan.
#include <filesystem>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>

#include "engine/run/memory/offload_stores.h"
#include "kernels/system/error.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/engine/small_model.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/limited_memory.h"

namespace aliquot {
namespace {

using namespace testing_model;

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / fmt::format("aliquot-offload-{}", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_; }
  bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::filesystem::path path_;
};

struct OffloadChoice {
  Offload state, parameters;
};

std::vector<OffloadChoice> offload_choices(int stage) {
  using enum Offload;
  std::vector<OffloadChoice> all = {{kHost, kNone}, {kDisk, kNone}};
  if (stage == 3) all.insert(all.end(), {{kNone, kHost}, {kNone, kDisk}, {kHost, kDisk}, {kDisk, kDisk}});
  return all;
}

Settings offloaded(Settings settings, const OffloadChoice& choice, const Folder& folder) {
  settings.options.offload_state = choice.state;
  settings.options.offload_parameters = choice.parameters;
  settings.options.offload_state_to = settings.options.offload_parameters_to = folder.path();
  return settings;
}

std::string describe(const Settings& settings) {
  const EngineOptions& options = settings.options;
  return fmt::format("ZeRO stage {}, {}, {}, state to {}, parameters to {}", options.zero_stage,
                     options.precision.describe(), name(options.optimizer), static_cast<int>(options.offload_state),
                     static_cast<int>(options.offload_parameters));
}

const Precision kPrecisions[] = {{},
                                 {.compute = DType::kBFloat16, .gradients = DType::kBFloat16},
                                 {.compute = DType::kBFloat16, .master = MasterForm::kFp32},
                                 {.compute = DType::kFloat16}};

/// Expects that training gives the same bits with and without offload, for every choice of what to offload and where.
void expect_no_bit_changed(int ranks, const Settings& settings, const Folder& folder) {
  const Outcome in_memory = train_on(ranks, settings);
  for (const OffloadChoice& choice : offload_choices(settings.options.zero_stage)) {
    const Settings with_offload = offloaded(settings, choice, folder);
    EXPECT_TRUE(train_on(ranks, with_offload) == in_memory) << ranks << " ranks, " << describe(with_offload);
  }
}

TEST(Offload, DoesNotChangeResults) {
  const Folder folder;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const Precision& precision : kPrecisions) {
        Settings settings;
        settings.options = {.zero_stage = stage, .precision = precision, .accumulate = 2, .clip = 0.5};
        expect_no_bit_changed(ranks, settings, folder);
      }
    }
  }
  EXPECT_TRUE(folder.empty()) << "offload files were not deleted";
}

/// The optimizers differ in their state: no state, one tensor (SGD with momentum, Lion), 8-bit with scales, bf16.
TEST(Offload, DoesNotChangeResultsOfAnyOptimizer) {
  const Folder folder;
  const std::pair<Optimizer, DType> rules[] = {{Sgd{.momentum = 0}, DType::kFloat32},
                                               {Sgd{.momentum = 0.9f}, DType::kFloat32},
                                               {Lion{}, DType::kFloat32},
                                               {AdamW8bit{}, DType::kFloat32},
                                               {AdamW{}, DType::kBFloat16}};
  for (const auto& [rule, moments] : rules) {
    for (const int stage : {0, 3}) {
      Settings settings;
      settings.options = {.zero_stage = stage, .optimizer = rule, .moments = moments};
      expect_no_bit_changed(2, settings, folder);
    }
  }
}

TEST(Offload, DoesNotChangeResultsWithOtherOptions) {
  const Folder folder;
  for (const int stage : {0, 2, 3}) {
    for (const bool in_backward : {false, true}) {
      Settings settings;
      settings.options = {.zero_stage = stage,
                          .precision = {.compute = DType::kBFloat16},
                          .accumulate = 2,
                          .prefetch = 2,
                          .keep_gathered = 1,
                          .update_in_backward = in_backward,
                          .reproducible = !in_backward,
                          .clip = in_backward ? 0.0 : 0.5};
      expect_no_bit_changed(2, settings, folder);
    }
  }
}

TEST(Offload, AdversarialSchedulingDoesNotChangeResults) {
  const Folder folder;
  for (const int stage : {1, 3}) {
    for (const bool in_backward : {false, true}) {
      Settings settings;
      settings.options = {.zero_stage = stage, .update_in_backward = in_backward, .clip = in_backward ? 0.0 : 0.5};
      settings.steps = 3;
      const Outcome in_memory = train_on(2, settings);
      for (const OffloadChoice& choice : offload_choices(stage)) {
        const Settings with_offload = offloaded(settings, choice, folder);
        for (uint64_t seed = 0; seed < 20; ++seed) {
          AdversarialScheduler adversary(
              seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
          const auto options =
              WorldOptions{.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }};
          EXPECT_TRUE(train_on(2, with_offload, options) == in_memory)
              << "seed " << seed << ", " << describe(with_offload);
        }
      }
    }
  }
}

/// Uninitialized memory differs between ranks. After each step, train() compares the copies, including their padding.
TEST(Offload, KeepsCopiesEqualInUninitializedMemory) {
  const Folder folder;
  for (const Precision& precision : kPrecisions) {
    for (const auto& [stage, replicas] : {std::pair{0, 1}, std::pair{2, 2}, std::pair{3, 2}}) {
      Settings settings;
      settings.options = {.zero_stage = stage, .replicas = replicas, .precision = precision};
      settings.options.offload_state = Offload::kHost;
      if (stage == 3) settings.options.offload_parameters = Offload::kHost;
      AdversarialScheduler adversary(1);
      const auto options =
          WorldOptions{.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }};
      EXPECT_NO_THROW(train_on(4, settings, options)) << describe(settings);
    }
  }
}

TEST(Offload, UsesThePlannedMemory) {
  const Folder folder;
  for (const int stage : {0, 1, 2, 3}) {
    for (const OffloadChoice& choice : offload_choices(stage)) {
      Settings settings;
      settings.options = {.zero_stage = stage, .precision = {.compute = DType::kBFloat16}, .accumulate = 2};
      settings = offloaded(settings, choice, folder);
      World::threads(
          3,
          [&](World& world) {
            EngineWithModel setup(world, settings);
            for (int step = 0; step < 2; ++step) {
              for (int m = 0; m < 2; ++m) train_micro_batch(setup.engine, setup.model, step, m, world.rank());
              EXPECT_FALSE(setup.engine.step().skipped);
            }
            const Account planned = account(setup.engine.plan().schedule);
            EXPECT_EQ(world.device().ledger().peak(), planned.peak) << describe(settings);
            EXPECT_EQ(world.device().ledger().in_use_peak_bytes(), planned.peak_bytes) << describe(settings);
          },
          kHosts);
    }
  }
}

/// The model has ten units. The state of at most two units is in memory at a time.
TEST(Offload, KeepsTheStateOfTwoUnitsInMemory) {
  ModelSpec model;
  constexpr int kUnits = 10, kElements = 64 * kBlockElements;
  for (int u = 0; u < kUnits; ++u) {
    const std::string name = fmt::format("u{}", u);
    model.units.push_back({name, {{.tensor = {name + ".weight", {kElements}}}}, GradientMode::kAdd});
    model.uses.push_back({u});
  }
  const auto at = [](const Account& account, Category category) {
    return account.peak[static_cast<std::size_t>(category)];
  };
  Plan on_disk = plan(model, {.zero_stage = 2, .offload_state = Offload::kDisk}, Topology::one_host(2));
  on_disk.schedule.stream_bytes = 0;  // excludes staging between steps
  const Account disk = account(on_disk.schedule);
  const int64_t state_of_a_unit = kElements / 2 * 8;  // two ranks; Adam's moments in fp32
  EXPECT_EQ(at(disk, Category::kOptimizer), 0);
  EXPECT_EQ(at(disk, Category::kStaging), 2 * state_of_a_unit);
  const Account host =
      account(plan(model, {.zero_stage = 2, .offload_state = Offload::kHost}, Topology::one_host(2)).schedule);
  EXPECT_EQ(at(host, Category::kOptimizer), kUnits * state_of_a_unit)
      << "on hosts, offload to host memory saves nothing";
  Topology gpus = Topology::one_host(2);
  gpus.gpu_of_rank = {0, 1};
  const Account gpu = account(plan(model, {.zero_stage = 2, .offload_state = Offload::kHost}, gpus).schedule);
  EXPECT_EQ(at(gpu, Category::kOptimizer), 0);
}

// Reading and writing state -------------------------------------------------------------------------------------------

/// Returns all tensors of a checkpoint, by path. Requires a world of one rank.
std::map<std::string, std::vector<std::byte>> contents(Engine& engine) {
  std::map<std::string, std::vector<std::byte>> all;
  const State state = engine.state();
  for (const StateTensor& tensor : state.tensors) {
    auto& bytes = all[tensor.path];
    bytes.resize(static_cast<std::size_t>(tensor.size_bytes()));
    for (const StatePiece& piece : tensor.pieces) {
      const int64_t each = element_bytes(tensor.dtype);
      std::byte* to = bytes.data() + piece.offset * each;
      if (tensor.access != nullptr) {
        // Reads parts of 37 elements, so that few parts begin or end at a page boundary.
        for (int64_t done = 0; done < piece.count; done += 37)
          tensor.access->read(piece, done, std::min<int64_t>(37, piece.count - done), to + done * each);
      } else {
        std::copy_n(piece.bytes, piece.count * each, to);
      }
    }
  }
  return all;
}

/// Writes the result of contents() into the state of another engine.
void fill(Engine& engine, const std::map<std::string, std::vector<std::byte>>& from) {
  State state = engine.state();
  for (const StateTensor& tensor : state.tensors) {
    for (const StatePiece& piece : tensor.pieces) {
      const int64_t each = element_bytes(tensor.dtype);
      const std::byte* bytes = from.at(tensor.path).data() + piece.offset * each;
      if (tensor.access != nullptr) {
        for (int64_t done = 0; done < piece.count; done += 37)
          tensor.access->write(piece, done, std::min<int64_t>(37, piece.count - done), bytes + done * each);
      } else {
        std::copy_n(bytes, piece.count * each, piece.bytes);
      }
    }
  }
  state.step = 3;
  state.scalars["update_count"] = int64_t{3};
  engine.adopt(state);
}

TEST(Offload, ReadsAndWritesOffloadedState) {
  const Folder folder;
  for (const Precision& precision : kPrecisions) {
    for (const int stage : {0, 3}) {
      Settings settings;
      settings.options = {.zero_stage = stage, .precision = precision};
      for (const OffloadChoice& choice : offload_choices(stage)) {
        World::threads(
            1,
            [&](World& world) {
              EngineWithModel in_memory(world, settings);
              EngineWithModel with_offload(world, offloaded(settings, choice, folder));
              for (int step = 0; step < 3; ++step) {
                for (EngineWithModel* each : {&in_memory, &with_offload}) {
                  train_micro_batch(each->engine, each->model, step, 0, 0);
                  EXPECT_FALSE(each->engine.step().skipped);
                }
              }
              const auto expected = contents(in_memory.engine);
              EXPECT_TRUE(contents(with_offload.engine) == expected)
                  << precision.describe() << ", ZeRO stage " << stage;
              EngineWithModel loaded(world, offloaded(settings, choice, folder));
              fill(loaded.engine, expected);
              for (EngineWithModel* each : {&in_memory, &loaded}) {
                train_micro_batch(each->engine, each->model, 3, 0, 0);
                EXPECT_FALSE(each->engine.step().skipped);
              }
              EXPECT_TRUE(contents(loaded.engine) == contents(in_memory.engine)) << "after one more step";
            },
            kHosts);
      }
    }
  }
}

TEST(Offload, SupportsFreezingAndEvaluation) {
  const Folder folder;
  Settings settings;
  settings.options = {.zero_stage = 3, .precision = {.compute = DType::kBFloat16}};
  const auto in_memory = freeze_and_evaluate(2, settings);
  for (const OffloadChoice& choice : offload_choices(3))
    EXPECT_EQ(freeze_and_evaluate(2, offloaded(settings, choice, folder)), in_memory);
}

// Failures ------------------------------------------------------------------------------------------------------------

TEST(Offload, InvalidOptionsThrow) {
  const auto refused = [](const EngineOptions& options) -> std::string {
    std::string sentence;
    World::threads(
        1,
        [&](World& world) {
          Settings settings;
          settings.options = options;
          try {
            const EngineWithModel setup(world, settings);
          } catch (const Error& error) {
            sentence = error.what();
          }
        },
        kHosts);
    return sentence;
  };
  using testing::HasSubstr;
  using enum Offload;
  EXPECT_THAT(refused({.zero_stage = 2, .offload_parameters = kHost}),
              HasSubstr("requires EngineOptions::zero_stage 3"));
  EXPECT_THAT(refused({.gather = GatherMode::kView, .offload_parameters = kHost}),
              HasSubstr("EngineOptions::gather is view"));
  EXPECT_THAT(refused({.offload_state = kDisk}), HasSubstr("needs a directory: set EngineOptions::offload_state_to"));
  EXPECT_THAT(refused({.offload_state = kDisk, .offload_state_to = "/nonexistent/of/course"}),
              HasSubstr("cannot open directory /nonexistent/of/course"));
}

TEST(DiskOffloadStore, FullDiskThrowsAtCreation) {
  test::FaultyFileSystem full({.call = test::SystemCall::kAllocate, .nth = 0, .error = ENOSPC});
  try {
    make_disk_offload_store(full, std::filesystem::temp_directory_path(), 1 << 20);
    FAIL();
  } catch (const FaultError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cannot reserve 1.00 MiB of disk space for"));
    EXPECT_THAT(error.what(),
                testing::HasSubstr(": No space left on device: free disk space, or use another directory"));
  }
}

TEST(DiskOffloadStore, UnaddressableSizeThrows) {
  EXPECT_THROW(make_disk_offload_store(FileSystem::system(), std::filesystem::temp_directory_path(), int64_t{1} << 50),
               UnavailableError);
}

TEST(DiskOffloadStoreDeathTest, ThrowsIfMemoryForItsBufferIsExhausted) {
  if (!kCanLimitMemory) GTEST_SKIP() << "the memory of a process cannot be limited under this sanitizer";
  const auto store = [] {
    const auto disk = make_disk_offload_store(FileSystem::system(), std::filesystem::temp_directory_path(), 8 << 20);
    static const std::vector<std::byte> values(8 << 20);
    exit_after_running_in_limited_memory(0, [&] { disk->store(disk->base(), values.data(), 8 << 20); });
  };
  EXPECT_EXIT(store(), testing::ExitedWithCode(2),
              "cannot allocate [0-9]* bytes of host memory to access offloaded data");
}

TEST(DiskOffloadStore, SynchronizeThrowsTheErrorOfAFailedRead) {
  const auto device = make_host_device(1);
  test::FaultyFileSystem faulty({.call = test::SystemCall::kRead, .nth = 1});
  const auto disk = make_disk_offload_store(faulty, std::filesystem::temp_directory_path(), 8192);
  const Buffer slot = device->allocate(8192, Category::kStaging, "slot");
  const auto io = device->make_stream(Lane::kIo);
  disk->copy_out(*io, 0, slot.data(), 8192);
  disk->copy_in(*io, slot.data(), 0, 8192);
  io->synchronize();
  disk->copy_in(*io, slot.data(), 0, 8192);
  EXPECT_THROW(io->synchronize(), FaultError);
}

TEST(DiskOffloadStore, WritesOfPartialPagesPreserveOtherBytes) {
  const auto disk = make_disk_offload_store(FileSystem::system(), std::filesystem::temp_directory_path(), 3 * 4096);
  std::vector<uint8_t> all(3 * 4096), part(5000), back(3 * 4096);
  std::iota(all.begin(), all.end(), 0);
  disk->store(disk->base(), all.data(), 3 * 4096);
  std::ranges::fill(part, 255);
  disk->store(disk->base() + 4000, part.data(), 5000);
  std::ranges::copy(part, all.begin() + 4000);
  disk->clear(disk->base() + 9001, 3);
  std::fill_n(all.begin() + 9001, 3, 0);
  disk->fetch(back.data(), disk->base(), 3 * 4096);
  EXPECT_EQ(back, all);
  std::vector<uint8_t> some(5);
  disk->fetch(some.data(), disk->base() + 8998, 5);
  EXPECT_EQ(some, std::vector<uint8_t>(all.begin() + 8998, all.begin() + 9003));
}

}  // namespace
}  // namespace aliquot
