// An MPI program that trains two models at the same time, on two groups of its ranks, while the last rank calls no MPI
// function: mpirun -n 5 engines_on_groups. Compares the parameters with those of worlds of threads.
#include <aliquot/aliquot.h>
#include <aliquot/mpi.h>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "tests/support/mpi_leaks.h"

namespace {

constexpr int kUnits = 3, kElements = 700, kSteps = 30;

struct Unit {
  float *weight = nullptr, *gradient = nullptr;
};

/// Moves the weights towards values that depend on the group, the rank and the step. Returns all weights.
std::vector<float> train(aliquot::World& world, int group) {
  std::array<Unit, kUnits> model;
  aliquot::Engine engine(
      world, {.zero_stage = group == 0 ? 3 : 1, .optimizer = aliquot::AdamW{.lr = 0.01f}, .max_skipped = 1});
  for (Unit& unit : model) {
    engine.add_unit(std::to_string(engine.units().size())).add("w", {kElements}, &unit.weight, &unit.gradient);
  }
  engine.materialize([&](const aliquot::ParameterSpec&, int64_t offset, std::span<float> values) {
    for (float& value : values) value = static_cast<float>((offset++ + group) % 13) * 0.1f;
  });
  for (int step = 0; step < kSteps; ++step) {
    const float target = static_cast<float>(group + world.rank()) + 0.01f * static_cast<float>(step);
    engine.micro_batch();
    for (auto& unit : engine.units()) const auto live = unit.forward();
    for (auto& unit : reversed(engine.units())) {
      const auto live = unit.backward();
      const Unit& of = model[unit.index()];
      for (int i = 0; i < kElements; ++i) of.gradient[i] += of.weight[i] - target;
    }
    if (engine.step().skipped) std::fprintf(stderr, "a step was skipped\n");
  }
  std::vector<float> all;
  for (int unit = 0; unit < kUnits; ++unit) {
    const std::vector<float> weights = engine.read(std::to_string(unit) + ".w");
    all.insert(all.end(), weights.begin(), weights.end());
  }
  return all;
}

/// Returns the weights that a world of two threads gives.
std::vector<float> train_on_threads(int group) {
  std::vector<float> weights;
  aliquot::World::threads(2,
                          [&](aliquot::World& world) {
                            std::vector<float> all = train(world, group);
                            if (world.rank() == 0) weights = std::move(all);
                          },
                          {.device = aliquot::DeviceChoice::kHost});
  return weights;
}

/// Waits, without MPI, until both groups have written their files.
bool wait_for_groups(const std::string& prefix) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int group = 0; group < 2; ++group) {
    const std::string file = prefix + std::to_string(group);
    while (!std::filesystem::exists(file)) {
      if (std::chrono::steady_clock::now() > limit) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::filesystem::remove(file);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0, rank = 0, count = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  if (count != 5) MPI_Abort(MPI_COMM_WORLD, 64);
  const int group = rank / 2;
  const std::string prefix = "/tmp/aliquot-groups-" + std::to_string(getppid()) + "-";
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, group, rank, &comm);
  bool passed = true;
  if (group == 2) {
    passed = wait_for_groups(prefix);
    if (!passed) std::fprintf(stderr, "the groups did not finish without rank 4\n");
  } else {
    try {
      std::vector<float> weights;
      {
        aliquot::World world = aliquot::World::from_mpi(comm, {.device = aliquot::DeviceChoice::kHost});
        weights = train(world, group);
      }
      if (rank % 2 == 0) std::ofstream(prefix + std::to_string(group)) << "done\n";
      passed = weights == train_on_threads(group) && weights.size() == kUnits * kElements;
      if (!passed) std::fprintf(stderr, "rank %d: the parameters differ from those on threads\n", rank);
    } catch (const aliquot::Error& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      MPI_Abort(MPI_COMM_WORLD, error.exit_code());
    }
  }
  if (passed) std::printf("rank %d passed\n", rank);
  MPI_Comm_free(&comm);
  MPI_Finalize();
  return passed ? 0 : 1;
}
