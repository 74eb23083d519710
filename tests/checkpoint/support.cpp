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
#include "sharding/split.h"
#include "sharding/state_pieces.h"
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
    } else if (partition == Partition::kSlices) {
      add_slices(tensor, rank_count, rank, seed);
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

std::byte* Shard::allocate(int64_t size_bytes) {
  return memory_.emplace_back(new std::byte[static_cast<size_t>(size_bytes)]).get();
}

void Shard::add_piece(StateTensor& tensor, int64_t offset, int64_t count) {
  tensor.pieces.push_back({offset, count, allocate(count * element_bytes(tensor.dtype)), false});
}

void Shard::add_slices(StateTensor& tensor, int rank_count, int rank, uint64_t seed) {
  std::mt19937_64 random(seed * 17 + std::hash<std::string>{}(tensor.path));
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  const int slices = 1 + static_cast<int>(below(4)), shards = 1 + static_cast<int>(below(3));
  Split split{.dimension = static_cast<int>(tensor.shape.size()) - 1, .parts = {}};
  const int64_t extent = tensor.shape.empty() ? 0 : tensor.shape.back(), first_part = extent < 2 ? 0 : below(extent);
  if (first_part > 0) split.parts = {first_part, extent - first_part};
  const int64_t width = element_bytes(tensor.dtype);
  for (int s = 0; s < slices; ++s) {
    if (split.dimension < 0 && s > 0) break;
    const Slice slice(tensor.shape, split, s, slices);
    for (int shard = 0; shard < shards; ++shard) {
      const auto [begin, end] = rank_range(slice.element_count(), shard, shards);
      if (below(rank_count) != rank || begin == end) continue;
      std::byte* memory = allocate((end - begin) * width);
      for (const SliceRuns& runs : slice.runs(begin, end))
        tensor.pieces.push_back({.offset = runs.full,
                                 .count = runs.count,
                                 .bytes = memory + (runs.local - begin) * width,
                                 .run = runs.run,
                                 .stride = runs.stride,
                                 .memory_stride = runs.local_stride});
    }
  }
}

namespace {

/// The tensor, with its pieces in host memory.
StateTensor in_host_memory(const StateTensor& tensor) {
  StateTensor plain = tensor;
  plain.access = nullptr;
  return plain;
}

/// Returns whether the pieces have the elements of `full`.
bool pieces_equal(const StateTensor& tensor, const std::vector<std::byte>& full) {
  const int64_t width = element_bytes(tensor.dtype);
  for (const StatePiece& piece : tensor.pieces) {
    std::vector<std::byte> own(static_cast<size_t>(piece.count * width));
    read_piece(in_host_memory(tensor), piece, 0, own);
    for (int64_t i = 0; i < piece.count; ++i) {
      if (std::memcmp(own.data() + i * width, full.data() + element_at(piece, i) * width, static_cast<size_t>(width)) !=
          0)
        return false;
    }
  }
  return true;
}

std::vector<std::byte> poison_for(const StateTensor& tensor) {
  return std::vector<std::byte>(static_cast<size_t>(tensor.size_bytes()), std::byte{0xa5});
}

}  // namespace

void Shard::fill(uint64_t seed) {
  for (size_t i = 0; i < shapes_.size(); ++i)
    write_elements(in_host_memory(state_.tensors[i]), 0, full_tensor_bytes(shapes_[i], seed));
}

void Shard::poison() {
  for (const StateTensor& tensor : state_.tensors) write_elements(in_host_memory(tensor), 0, poison_for(tensor));
}

bool Shard::is_poisoned() const {
  return std::ranges::all_of(state_.tensors,
                             [](const StateTensor& tensor) { return pieces_equal(tensor, poison_for(tensor)); });
}

bool Shard::holds(uint64_t seed) const {
  for (size_t i = 0; i < shapes_.size(); ++i) {
    if (!pieces_equal(state_.tensors[i], full_tensor_bytes(shapes_[i], seed))) return false;
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
