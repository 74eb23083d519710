#include "tests/checkpoint/support.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <stdexcept>
#include <unistd.h>

#include "checkpoint/save.h"
#include "sharding/world.h"

namespace aliquot::test {
namespace {

int64_t count_of(const TestTensor& tensor) {
  int64_t count = 1;
  for (int64_t extent : tensor.shape) count *= extent;
  return count;
}

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

TemporaryDirectory::TemporaryDirectory(const std::filesystem::path& beneath) {
  std::string name = (beneath / "aliquot-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw std::runtime_error("cannot create a temporary directory in " + beneath.string());
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::vector<std::string> on_ranks(int rank_count, const std::function<void(Communicator&)>& body) {
  std::vector<std::string> failures(static_cast<size_t>(rank_count));
  WorldOptions options;
  options.device = DeviceChoice::kHost;
  options.threads_per_rank = 1;
  options.timeout_seconds = 60;
  World::threads(
      rank_count,
      [&](World& world) {
        try {
          body(world.communicator());
        } catch (const std::exception& error) {
          failures[static_cast<size_t>(world.rank())] = error.what();
        }
      },
      options);
  return failures;
}

std::vector<TestTensor> edge_case_tensors() {
  return {{"parameters/wte.weight", {257, 96}, DType::kFloat32},
          {"parameters/h.0.ln.bias", {128}, DType::kFloat32},
          {"parameters/h.0.w", {31, 33}, DType::kBFloat16},
          {"parameters/one", {1}, DType::kFloat32},
          {"parameters/scalar", {}, DType::kFloat64},
          {"parameters/empty", {0, 7}, DType::kFloat32},
          {"parameters/half", {1021}, DType::kFloat16},
          {"parameters/big", {1200, 1001}, DType::kFloat32},
          {"optimizer/wte.weight/exp_avg", {257, 96}, DType::kFloat32},
          {"optimizer/wte.weight/exp_avg_sq", {257, 96}, DType::kBFloat16},
          {"optimizer/h.0.w/codes", {4097}, DType::kUInt8},
          {"optimizer/h.0.w/odd", {3}, DType::kUInt8},
          {"optimizer/h.0.w/low", {511}, DType::kInt16},
          {"optimizer/h.0.w/wide", {515}, DType::kFloat64},
          {"loader/page", {1024}, DType::kFloat32},
          {"loader/almost", {1023}, DType::kFloat32}};
}

std::vector<TestTensor> small_tensors() {
  return {{"parameters/w", {13, 7}, DType::kFloat32},
          {"parameters/b", {13}, DType::kBFloat16},
          {"optimizer/w/exp_avg", {13, 7}, DType::kFloat32},
          {"optimizer/w/codes", {91}, DType::kUInt8}};
}

std::vector<std::byte> full_tensor_bytes(const TestTensor& tensor, uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(count_of(tensor) * element_bytes(tensor.dtype)));
  const uint64_t key = mix(std::hash<std::string>{}(tensor.path) + seed);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(mix(key + i / 8) >> (8 * (i % 8)));
  return bytes;
}

Shard::Shard(const std::vector<TestTensor>& tensors, int rank_count, int rank, Partition partition, uint64_t seed) {
  shapes_ = tensors;
  std::mt19937_64 order(seed + static_cast<uint64_t>(rank));
  if (partition == Partition::kRandom) std::shuffle(shapes_.begin(), shapes_.end(), order);
  int64_t flat_blocks = 0;
  for (const TestTensor& tensor : tensors) flat_blocks += (count_of(tensor) + kBlockElements - 1) / kBlockElements;
  const int64_t shard_count = (flat_blocks + rank_count - 1) / rank_count * kBlockElements;
  for (const TestTensor& shape : shapes_) {
    StateTensor tensor{shape.path, shape.shape, shape.dtype, {}, nullptr};
    const int64_t count = count_of(shape);
    if (partition == Partition::kBlocks) {
      int64_t start = 0;
      for (const TestTensor& before : tensors) {
        if (before.path == shape.path) break;
        start += (count_of(before) + kBlockElements - 1) / kBlockElements * kBlockElements;
      }
      const int64_t begin = std::max(start, rank * shard_count),
                    end = std::min(start + count, (rank + 1) * shard_count);
      if (begin < end) add_piece(tensor, begin - start, end - begin);
    } else {
      std::mt19937_64 random(seed * 31 + std::hash<std::string>{}(shape.path));
      for (int64_t begin = 0; begin < count;) {
        const int64_t length =
            std::min<int64_t>(count - begin, 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(count)));
        if (random() % static_cast<uint64_t>(rank_count) == static_cast<uint64_t>(rank))
          add_piece(tensor, begin, length);
        begin += length;
      }
    }
    state_.tensors.push_back(std::move(tensor));
  }
  state_.step = 100;
  state_.scalars = test_scalars();
}

void Shard::add_piece(StateTensor& tensor, int64_t offset, int64_t count) {
  memory_.emplace_back(new std::byte[static_cast<size_t>(count * element_bytes(tensor.dtype))]);
  tensor.pieces.push_back({offset, count, memory_.back().get(), false});
}

void Shard::fill(uint64_t seed) {
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const auto full = full_tensor_bytes(shapes_[i], seed);
    const int64_t width = element_bytes(shapes_[i].dtype);
    for (const StatePiece& piece : state_.tensors[i].pieces) {
      std::memcpy(piece.bytes, full.data() + piece.offset * width, static_cast<size_t>(piece.count * width));
    }
  }
}

void Shard::poison() {
  for (const StateTensor& tensor : state_.tensors) {
    for (const StatePiece& piece : tensor.pieces) {
      std::memset(piece.bytes, 0xa5, static_cast<size_t>(piece.count * element_bytes(tensor.dtype)));
    }
  }
}

bool Shard::is_poisoned() const {
  for (const StateTensor& tensor : state_.tensors) {
    for (const StatePiece& piece : tensor.pieces) {
      const auto* end = piece.bytes + piece.count * element_bytes(tensor.dtype);
      if (!std::all_of(static_cast<const std::byte*>(piece.bytes), end,
                       [](std::byte b) { return b == std::byte{0xa5}; }))
        return false;
    }
  }
  return true;
}

bool Shard::holds(uint64_t seed) const {
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const auto full = full_tensor_bytes(shapes_[i], seed);
    const int64_t width = element_bytes(shapes_[i].dtype);
    for (const StatePiece& piece : state_.tensors[i].pieces) {
      if (std::memcmp(piece.bytes, full.data() + piece.offset * width, static_cast<size_t>(piece.count * width)) != 0)
        return false;
    }
  }
  return true;
}

std::map<std::string, Scalar> test_scalars() {
  return {{"seed", int64_t{-7}},
          {"loss_scale", 65536.0},
          {"best_loss", std::numeric_limits<double>::infinity()},
          {"schedule", std::string("cosine")},
          {"note", std::string()},
          {"loader_position", std::vector<int64_t>{1, 2, int64_t{1} << 62}},
          {"history", std::vector<double>{0.1, -0.0, 1e-310, std::numeric_limits<double>::quiet_NaN()}},
          {"nothing", std::vector<double>{}}};
}

void save_test_state(const std::filesystem::path& directory, const std::vector<TestTensor>& tensors, uint64_t seed,
                     int64_t step, int rank_count) {
  const auto failures = on_ranks(rank_count, [&](Communicator& communicator) {
    Shard shard(tensors, rank_count, communicator.rank(), Partition::kBlocks, 5);
    shard.fill(seed);
    shard.state().step = step;
    save(shard.state(), communicator, directory);
  });
  if (!failures[0].empty()) throw std::runtime_error(failures[0]);
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace aliquot::test
