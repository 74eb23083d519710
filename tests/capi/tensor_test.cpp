// Trains a model in tensor groups with the C interface.
#include <aliquot/c.h>
#include <cmath>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace {

#define EXPECT_DONE(call) EXPECT_EQ(call, ALIQUOT_DONE) << aliquot_message()
#define EXPECT_USAGE(call, text)  \
  EXPECT_EQ(call, ALIQUOT_USAGE); \
  EXPECT_NE(std::string(aliquot_message()).find(text), std::string::npos) << aliquot_message()

constexpr int kUnits = 3, kRows = 6, kIn = 5, kMiddle = 7;

/// Blocks y = B tanh(A x) with the loss |y|^2 / 2 of the last block. A rank has rows of A and the same columns of B.
struct Blocks {
  struct Block {
    float *a, *b, *d_a, *d_b;
  };
  aliquot_engine* engine = nullptr;
  int64_t middle = 0;  // rows of A on this rank
  Block blocks[kUnits] = {};
  std::vector<float> slopes;  // gradients of A x
  double loss = 0;

  static float first_input(int i) { return std::sin(0.7f * static_cast<float>(i)); }
  static float input(const aliquot_use_memory& memory, int i) {
    return memory.use == 0 ? first_input(i) : static_cast<const float*>(memory.input)[i];
  }

  void keep_middle(const aliquot_use_memory& memory) {
    auto* kept = static_cast<float*>(memory.kept);
    for (int r = 0; r < kRows; ++r) {
      for (int64_t m = 0; m < middle; ++m) {
        float sum = 0;
        for (int k = 0; k < kIn; ++k) sum += blocks[memory.use].a[m * kIn + k] * input(memory, r * kIn + k);
        kept[r * middle + m] = std::tanh(sum);
      }
    }
  }

  void forward(const aliquot_use_memory& memory) {
    keep_middle(memory);
    const auto* kept = static_cast<const float*>(memory.kept);
    auto* output = static_cast<float*>(memory.output);
    for (int r = 0; r < kRows; ++r) {
      for (int k = 0; k < kIn; ++k) {
        float sum = 0;
        for (int64_t m = 0; m < middle; ++m) sum += blocks[memory.use].b[k * middle + m] * kept[r * middle + m];
        output[r * kIn + k] = sum;
      }
    }
    EXPECT_DONE(aliquot_run_collective(engine, "output"));
    loss = 0;
    for (int i = 0; i < kRows * kIn; ++i) loss += 0.5 * output[i] * output[i];
  }

  void backward(const aliquot_use_memory& memory) {
    const Block& block = blocks[memory.use];
    const auto* kept = static_cast<const float*>(memory.kept);
    auto* gradient = static_cast<float*>(memory.backward);
    if (memory.use == kUnits - 1) std::copy_n(static_cast<const float*>(memory.output), kRows * kIn, gradient);
    slopes.assign(static_cast<std::size_t>(kRows * middle), 0.0f);
    for (int r = 0; r < kRows; ++r) {
      for (int64_t m = 0; m < middle; ++m) {
        const float value = kept[r * middle + m];
        float sum = 0;
        for (int k = 0; k < kIn; ++k) {
          sum += block.b[k * middle + m] * gradient[r * kIn + k];
          block.d_b[k * middle + m] += gradient[r * kIn + k] * value;
        }
        slopes[static_cast<std::size_t>(r * middle + m)] = sum * (1 - value * value);
        for (int k = 0; k < kIn; ++k) block.d_a[m * kIn + k] += sum * (1 - value * value) * input(memory, r * kIn + k);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int k = 0; k < kIn; ++k) {
        float sum = 0;
        for (int64_t m = 0; m < middle; ++m)
          sum += block.a[m * kIn + k] * slopes[static_cast<std::size_t>(r * middle + m)];
        gradient[r * kIn + k] = sum;
      }
    }
    EXPECT_DONE(aliquot_run_collective(engine, "gradient"));
  }
};

int recompute(void* context, const aliquot_use_memory* memory) {
  static_cast<Blocks*>(context)->keep_middle(*memory);
  return ALIQUOT_DONE;
}

int fill(void*, const char* name, int64_t offset, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = 0.4f * std::cos(static_cast<float>(name[2] + 3 * (offset + i)));
  return ALIQUOT_DONE;
}

void declare(Blocks& m, int tensor, int tensor_rank) {
  int64_t first = 0, end = 0, largest = 0;
  for (int rank = 0; rank < tensor; ++rank) {
    EXPECT_DONE(aliquot_rank_range(kMiddle, rank, tensor, &first, &end));
    largest = std::max(largest, end - first);
    if (rank == tensor_rank) m.middle = end - first;
  }
  const int64_t rows[] = {kMiddle, kIn}, columns[] = {kIn, kMiddle}, parts[] = {kMiddle}, units[] = {1};
  const aliquot_collective collectives[] = {
      {"output", ALIQUOT_SUM, ALIQUOT_FORWARD, ALIQUOT_OUTPUT, 0, kRows, kIn, ALIQUOT_FLOAT32, 0},
      {"gradient", ALIQUOT_SUM, ALIQUOT_BACKWARD, ALIQUOT_GRADIENT, 0, kRows, kIn, ALIQUOT_FLOAT32, 0}};
  std::vector<aliquot_activations> uses;
  for (int u = 0; u < kUnits; ++u) {
    auto& block = m.blocks[u];
    EXPECT_DONE(aliquot_add_unit(m.engine, ("h" + std::to_string(u)).c_str(), nullptr));
    aliquot_parameter a = {"a", 2, rows, &block.a,           &block.d_a, 0,     0,     0, 0,
                           0,   0, 0,    ALIQUOT_SPLIT_ROWS, 1,          parts, units, 0};
    aliquot_parameter b = {"b", 2,       columns, &block.b, &block.d_b, 0, 0, 0, 0, 0, 0, 0, ALIQUOT_SPLIT_COLUMNS,
                           0,   nullptr, nullptr, 0};
    EXPECT_DONE(aliquot_add_parameter(m.engine, u, &a));
    EXPECT_DONE(aliquot_add_parameter(m.engine, u, &b));
    uses.push_back({kRows * kIn * 4, kRows * largest * 4, 0, u + 1 < kUnits, 0, u + 1 < kUnits, 0, 0, 2, collectives});
  }
  EXPECT_DONE(aliquot_declare_activations(m.engine, kUnits, uses.data(), kRows * kIn * 4, recompute, &m));
  EXPECT_DONE(aliquot_materialize(m.engine, fill, nullptr));
}

struct Run {
  aliquot_options* options;
  int tensor;
  std::vector<float> result;  // of rank 0: losses, then parameters
};

int train(aliquot_world* world, void* context) {
  auto& run = *static_cast<Run*>(context);
  Blocks m;
  if (const int status = aliquot_engine_create(world, run.options, &m.engine); status != ALIQUOT_DONE) return status;
  declare(m, run.tensor, aliquot_rank(world) % run.tensor);
  std::vector<float> result;
  for (int step = 0; step < 3; ++step) {
    aliquot_work work;
    while (aliquot_next(m.engine, &work) == ALIQUOT_DONE && work.kind != ALIQUOT_NO_WORK) {
      work.kind == ALIQUOT_FORWARD ? m.forward(work.memory) : m.backward(work.memory);
      if (aliquot_close(m.engine) != ALIQUOT_DONE) return ALIQUOT_USAGE;
    }
    EXPECT_DONE(aliquot_step(m.engine, nullptr));
    result.push_back(static_cast<float>(m.loss));
  }
  for (int u = 0; u < kUnits; ++u) {
    for (const char* name : {"a", "b"}) {
      std::vector<float> values(kMiddle * kIn);
      EXPECT_DONE(aliquot_read(m.engine, ("h" + std::to_string(u) + "." + name).c_str(),
                               static_cast<int64_t>(values.size()), values.data()));
      result.insert(result.end(), values.begin(), values.end());
    }
  }
  if (aliquot_rank(world) == 0) run.result = result;
  aliquot_engine_free(m.engine);
  return ALIQUOT_DONE;
}

std::vector<float> trained(int tensor, const char* recomputed) {
  Run run{nullptr, tensor, {}};
  EXPECT_DONE(aliquot_options_create(&run.options));
  EXPECT_DONE(aliquot_options_set(run.options, "tensor", std::to_string(tensor).c_str()));
  EXPECT_DONE(aliquot_options_set(run.options, "recompute", recomputed));
  EXPECT_DONE(aliquot_world_threads(tensor, train, &run, run.options));
  aliquot_options_free(run.options);
  return run.result;
}

TEST(CTensor, GroupsAgreeWithOneRank) {
  const std::vector<float> one = trained(1, "none");
  ASSERT_EQ(one.size(), 3u + 2 * kUnits * kMiddle * kIn);
  EXPECT_LT(one[2], one[0]);
  for (const int tensor : {2, 3}) {
    for (const char* recomputed : {"none", "block"}) {
      const std::vector<float> got = trained(tensor, recomputed);
      ASSERT_EQ(got.size(), one.size());
      for (std::size_t i = 0; i < one.size(); ++i)
        EXPECT_NEAR(got[i], one[i], 1e-4 * std::abs(one[i]) + 1e-5) << tensor << " ranks, value " << i;
    }
  }
}

TEST(CTensor, RefusesInvalidDeclarations) {
  const auto body = [](aliquot_world* world, void*) -> int {
    aliquot_engine* engine = nullptr;
    EXPECT_DONE(aliquot_engine_create(world, nullptr, &engine));
    EXPECT_DONE(aliquot_add_unit(engine, "h", nullptr));
    const int64_t shape[] = {4, 4}, parts[] = {3};
    float *value = nullptr, *gradient = nullptr;
    aliquot_parameter p = {"w", 2, shape, &value, &gradient, 0, 0, 0, 0, 0, 0, 0, 3, 0, nullptr, nullptr, 0};
    EXPECT_USAGE(aliquot_add_parameter(engine, 0, &p), "parameter w: split is 3: expected ALIQUOT_NOT_SPLIT");
    p.split = ALIQUOT_NOT_SPLIT;
    p.part_count = 1;
    EXPECT_USAGE(aliquot_add_parameter(engine, 0, &p), "part_count is 1, but split is ALIQUOT_NOT_SPLIT");
    p.split = ALIQUOT_SPLIT_ROWS;
    EXPECT_USAGE(aliquot_add_parameter(engine, 0, &p), "parameter w: part_lengths is null: expected 1 lengths");
    p.part_lengths = parts;
    EXPECT_DONE(aliquot_add_parameter(engine, 0, &p));  // refused when the plan is made
    aliquot_memory memory;
    EXPECT_USAGE(aliquot_planned_memory(engine, &memory), "the parts do not add up to the extent of dimension 0");
    EXPECT_USAGE(aliquot_run_collective(engine, "sum"), "while no unit was open");
    int64_t first = 0, end = 0;
    EXPECT_USAGE(aliquot_rank_range(4, 2, 2, &first, &end), "expected 0 or more units, and a rank below tensor");
    aliquot_collective collective = {"sum", 7, ALIQUOT_FORWARD, ALIQUOT_OUTPUT, 0, 1, 1, ALIQUOT_FLOAT32, 0};
    aliquot_activations use = {64, 0, 0, 0, 0, 0, 0, 0, 1, &collective};
    EXPECT_USAGE(aliquot_declare_activations(engine, 1, &use, 0, nullptr, nullptr), "kind is 7: expected 0 to 2");
    collective.kind = ALIQUOT_SUM;
    use.collective_count = -1;
    EXPECT_USAGE(aliquot_declare_activations(engine, 1, &use, 0, nullptr, nullptr), "use 0: collective_count is -1");
    use.collective_count = 1;
    collective.part = ALIQUOT_EVALUATE;
    EXPECT_USAGE(aliquot_declare_activations(engine, 1, &use, 0, nullptr, nullptr),
                 "part is 2: expected ALIQUOT_FORWARD");
    aliquot_engine_free(engine);
    return ALIQUOT_DONE;
  };
  EXPECT_DONE(aliquot_world_threads(1, body, nullptr, nullptr));
}

}  // namespace
