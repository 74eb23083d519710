// Trains a LibTorch module, sharded with Aliquot: transformer_torch RANKS [ZERO_STAGE [STEPS [WIDTH [LAYERS]]]], or
// under mpirun. RANKS 0 trains on the same batches without Aliquot, on one rank with LibTorch's optimizer.
#include <aliquot/aliquot.h>
#include <aliquot/torch.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <mutex>

namespace nn = torch::nn;
constexpr int64_t kVocabulary = 256, kContext = 128, kHeads = 4, kSequences = 8;  // kSequences is the global batch

struct BlockImpl : nn::Module {
  int64_t width;
  nn::LayerNorm before_attention, before_mlp;
  nn::Linear qkv, project, up, down;

  explicit BlockImpl(int64_t w)
      : width(w),
        before_attention(nn::LayerNormOptions({w})),
        before_mlp(nn::LayerNormOptions({w})),
        qkv(w, 3 * w),
        project(w, w),
        up(w, 4 * w),
        down(4 * w, w) {
    register_module("ln_1", before_attention), register_module("qkv", qkv), register_module("project", project);
    register_module("ln_2", before_mlp), register_module("up", up), register_module("down", down);
  }

  torch::Tensor attend(const torch::Tensor& x) {
    auto parts = qkv(x).view({x.size(0), x.size(1), 3, kHeads, width / kHeads}).permute({2, 0, 3, 1, 4});
    auto scores = parts[0].matmul(parts[1].transpose(-1, -2)) / std::sqrt(static_cast<double>(width) / kHeads);
    auto future = torch::ones({x.size(1), x.size(1)}, torch::kBool).triu(1);
    return project(
        scores.masked_fill(future, -INFINITY).softmax(-1).matmul(parts[2]).transpose(1, 2).reshape(x.sizes()));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x + attend(before_attention(x));
    return x + down(torch::gelu(up(before_mlp(x))));
  }
};
TORCH_MODULE(Block);

struct Transformer : nn::Module {
  nn::Embedding tokens, places;
  nn::ModuleList blocks;
  nn::LayerNorm last;
  nn::Linear head;

  Transformer(int64_t width, int layers)
      : tokens(kVocabulary, width),
        places(kContext, width),
        last(nn::LayerNormOptions({width})),
        head(width, kVocabulary) {
    register_module("wte", tokens), register_module("wpe", places), register_module("h", blocks);
    for (int l = 0; l < layers; ++l) blocks->push_back(Block(width));
    register_module("ln_f", last), register_module("head", head);
  }
  // Sharding requires only one change to the module: it calls its submodules with aliquot::call(). If the module is not
  // sharded, aliquot::call() does nothing except call their forward().
  torch::Tensor forward(const torch::Tensor& ids) {
    auto x = aliquot::call(tokens, ids);
    x = x + aliquot::call(places, torch::arange(ids.size(1)).expand_as(ids));
    for (const auto& block : *blocks) x = aliquot::call(*block->as<Block>(), x);
    return aliquot::call(head, aliquot::call(last, x));
  }
};

/// Returns the model's loss for the rows [first, first + rows) of a synthetic batch. In each row, most letters are
/// determined by the two letters before them, so the model can learn to predict them.
torch::Tensor loss_of(Transformer& model, int step, int64_t first, int64_t rows) {
  auto ids = torch::empty({rows, kContext + 1}, torch::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    uint64_t state = static_cast<uint64_t>(step) * 1000003 + static_cast<uint64_t>(first + row) * 7919 + 1;
    int64_t* letters = ids[row].data_ptr<int64_t>();
    for (int64_t i = 0; i <= kContext; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      letters[i] = i < 2 || state >> 60 == 0 ? static_cast<int64_t>(state >> 40) % 64
                                             : (letters[i - 1] * 5 + letters[i - 2]) % 64;
    }
  }
  auto logits = model.forward(ids.narrow(1, 0, kContext));
  return nn::functional::cross_entropy(logits.reshape({-1, kVocabulary}), ids.narrow(1, 1, kContext).reshape({-1}));
}

class Clock {
 public:
  void print(const char* name, int64_t steps) const {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
    std::ifstream status("/proc/self/status");
    long peak = 0;
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("VmHWM:", 0) == 0) peak = std::atol(line.c_str() + 6);
    }
    std::printf("%s: %.0f tokens/s, peak memory of this process %ld MiB\n", name,
                static_cast<double>(steps * kSequences * kContext) / seconds, peak >> 10);
  }

 private:
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

struct Size {
  int steps;
  int64_t width;
  int layers;
};

void train_alone(const Size& size) {
  torch::manual_seed(1);
  Transformer model(size.width, size.layers);
  torch::optim::AdamW optimizer(model.parameters(),
                                torch::optim::AdamWOptions(1e-3).betas({0.9, 0.95}).weight_decay(0.1));
  int64_t count = 0;
  for (const auto& each : model.parameters()) count += each.numel();
  std::printf("LibTorch alone: %ld parameters, with gradients and moments %ld MiB\n", count, 16 * count >> 20);
  const Clock clock;
  for (int step = 1; step <= size.steps; ++step) {
    auto loss = loss_of(model, step, 0, kSequences);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    std::printf("step %d loss %.6f\n", step, loss.item<double>());
  }
  clock.print("LibTorch alone", size.steps);
}

void train_sharded(aliquot::World& world, int stage, const Size& size) {
  Transformer model = [&] {
    static std::mutex mutex;  // ranks that are threads share LibTorch's random generator
    const std::lock_guard lock(mutex);
    torch::manual_seed(1);
    return Transformer(size.width, size.layers);
  }();
  aliquot::Engine engine(world, {.zero_stage = stage, .optimizer = aliquot::AdamW{.lr = 1e-3f}, .clip = 0});
  const auto sharded = aliquot::fully_shard(model, engine);
  if (world.rank() == 0) std::cout << engine.plan() << "\n";
  const int64_t rows = kSequences / world.rank_count();
  const Clock clock;
  for (int step = 1; step <= size.steps; ++step) {
    engine.micro_batch();
    auto loss = loss_of(model, step, world.rank() * rows, rows);
    loss.backward();
    if (engine.step().skipped && world.rank() == 0) std::printf("step %d was skipped\n", step);
    double mean = loss.item<double>() / world.rank_count();
    world.sum({&mean, 1});
    if (world.rank() == 0) std::printf("step %d loss %.6f\n", step, mean);
  }
  if (world.rank() == 0) clock.print("sharded", size.steps);
}

int main(int count, char** words) {
  const auto number = [&](int at, int otherwise) { return count > at ? std::atoi(words[at]) : otherwise; };
  const Size size{number(3, 10), number(4, 64), number(5, 2)};
  at::set_num_threads(1);
  if (number(1, 2) == 0) return train_alone(size), 0;
  aliquot::World::run(number(1, 2), [&](aliquot::World& world) { train_sharded(world, number(2, 3), size); });
}
