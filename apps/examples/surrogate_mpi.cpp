// surrogate.c in an MPI program: the last rank simulates, and all others train the network with its samples.
//
//   mpirun -n 4 surrogate_mpi [STEPS [ZERO_STAGE]]
//
// The ranks that train have a communicator of their own, and an engine on it. In each step, the simulating rank sends a
// batch to each of them. Every 20 steps it receives the parameters, and evaluates the network in plain code.
#include <aliquot/aliquot.h>
#include <aliquot/mpi.h>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "surrogate_model.h"

constexpr int kEvaluateEvery = 20, kBatchTag = 1, kLossTag = 2, kParameterTag = 3;

struct Run {
  int steps, zero_stage, trainers;
  int simulator() const { return trainers; }  // ranks of MPI_COMM_WORLD: 0 to trainers - 1 train
};

void declare(aliquot::Engine& engine, Network& network) {
  for (Layer& layer : network.layers) {
    engine.add_unit("layer." + std::to_string(engine.units().size()))
        .add("weight", {CELLS, CELLS}, &layer.weight, &layer.weight_gradient)
        .add("bias", {CELLS}, &layer.bias, &layer.bias_gradient, {.decayed = false});
  }
  engine.materialize([](const aliquot::ParameterSpec&, int64_t offset, std::span<float> values) {
    for (float& value : values) value = initial(offset++);
  });
}

/// Sends the loss and the parameters from the first trainer to the simulating rank. All trainers call it.
void send_parameters(aliquot::Engine& engine, double mean, const Run& run) {
  const bool sends = engine.world().rank() == 0;
  if (sends) MPI_Send(&mean, 1, MPI_DOUBLE, run.simulator(), kLossTag, MPI_COMM_WORLD);
  for (int l = 0; l < LAYERS; ++l) {
    for (const char* name : {"weight", "bias"}) {
      const std::vector<float> values = engine.read("layer." + std::to_string(l) + "." + name);
      const int count = static_cast<int>(values.size());
      if (sends) MPI_Send(values.data(), count, MPI_FLOAT, run.simulator(), kParameterTag, MPI_COMM_WORLD);
    }
  }
}

void train(aliquot::World& world, const Run& run) {
  Network network{};
  Batch batch;
  aliquot::Engine engine(
      world, {.zero_stage = run.zero_stage, .optimizer = aliquot::AdamW{.lr = 0.003f}, .clip = 0, .max_skipped = 1});
  declare(engine, network);
  for (int step = 1; step <= run.steps; ++step) {
    MPI_Recv(&batch, sizeof batch, MPI_BYTE, run.simulator(), kBatchTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    load(&network, &batch);
    engine.micro_batch();
    for (auto& unit : engine.units()) {
      const auto live = unit.forward();
      forward(&network, unit.index());
    }
    double mean = loss(&network) / world.rank_count();
    for (auto& unit : reversed(engine.units())) {
      const auto live = unit.backward();
      backward(&network, unit.index());
    }
    if (engine.step().skipped) std::printf("step %d was skipped\n", step);
    world.sum({&mean, 1});
    if (step % kEvaluateEvery == 0) send_parameters(engine, mean, run);
  }
}

/// Receives the loss and the parameters from the first trainer, and evaluates the network on a batch.
void evaluate(const Batch& batch, int step) {
  static Network network;
  static float weights[LAYERS][CELLS * CELLS], biases[LAYERS][CELLS];
  double mean = 0;
  MPI_Recv(&mean, 1, MPI_DOUBLE, 0, kLossTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  for (int l = 0; l < LAYERS; ++l) {
    network.layers[l] = {weights[l], nullptr, biases[l], nullptr};
    MPI_Recv(weights[l], CELLS * CELLS, MPI_FLOAT, 0, kParameterTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Recv(biases[l], CELLS, MPI_FLOAT, 0, kParameterTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  load(&network, &batch);
  for (int l = 0; l < LAYERS; ++l) forward(&network, l);
  std::printf("step %d loss %.9g error %.9g\n", step, mean, loss(&network));
}

void simulate(const Run& run) {
  Simulation simulation{.state = {}, .seed = 1, .samples = 0}, other{.state = {}, .seed = 2, .samples = 0};
  Batch batch, test;
  next_batch(&other, &test);
  for (int step = 1; step <= run.steps; ++step) {
    for (int trainer = 0; trainer < run.trainers; ++trainer) {
      next_batch(&simulation, &batch);
      MPI_Send(&batch, sizeof batch, MPI_BYTE, trainer, kBatchTag, MPI_COMM_WORLD);
    }
    if (step % kEvaluateEvery == 0) evaluate(test, step);
  }
}

int main(int count, char** words) {
  int level = 0, rank = 0, rank_count = 0;
  MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &level);  // Aliquot calls MPI on several threads
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &rank_count);
  const Run run{count > 1 ? std::atoi(words[1]) : 100, count > 2 ? std::atoi(words[2]) : 3, rank_count - 1};
  if (run.trainers < 1) {
    std::fprintf(stderr, "surrogate_mpi needs at least 2 ranks: start it with mpirun -n 4\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  const bool simulates = rank == run.simulator();
  MPI_Comm trainers = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, simulates ? MPI_UNDEFINED : 0, rank, &trainers);
  try {
    if (simulates) {
      simulate(run);
    } else {
      aliquot::World world = aliquot::World::from_mpi(trainers);
      train(world, run);
    }
  } catch (const aliquot::Error& error) {
    std::cerr << "surrogate_mpi: " << error.what() << "\n";
    MPI_Abort(MPI_COMM_WORLD, error.exit_code());
  }
  if (trainers != MPI_COMM_NULL) MPI_Comm_free(&trainers);
  MPI_Finalize();
}
