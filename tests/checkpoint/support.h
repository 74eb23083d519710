#pragma once
// Helpers of the checkpoint tests: ranks as threads, states with any partition, temporary directories.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sharding/comm/communicator.h"
#include "sharding/state.h"

namespace aliquot::test {

/// A new directory in the system's temporary directory. The destructor removes it with its contents.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::filesystem::path& beneath = std::filesystem::temp_directory_path());
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Runs `body` on `rank_count` ranks, which are threads. Returns the exception message of each rank, or an empty string
/// if it threw nothing.
std::vector<std::string> on_ranks(int rank_count, const std::function<void(Communicator&)>& body);

/// The description of a tensor, without its data.
struct TestTensor {
  std::string path;
  std::vector<int64_t> shape;
  DType dtype;
};

/// Returns tensors of every dtype: scalars, empty tensors, prime sizes, and sizes near those of pages and tiles.
std::vector<TestTensor> edge_case_tensors();
/// Returns a few small tensors.
std::vector<TestTensor> small_tensors();

/// Returns pseudorandom bytes of the full tensor. They depend only on path, seed and position.
std::vector<std::byte> full_tensor_bytes(const TestTensor& tensor, uint64_t seed);

enum class Partition { kBlocks, kRandom, kSlices };

/// The part of a state that one rank holds, with its memory. kBlocks: the tensors form one flat buffer, each padded to
/// whole blocks, which is split into equal shards. kRandom: pieces of random length on random ranks, both determined by
/// `seed`; the order of tensors differs between ranks. kSlices: the last dimension of each tensor is split into slices
/// of random parts, and each slice into shards on random ranks, so that pieces consist of runs.
class Shard {
 public:
  Shard(const std::vector<TestTensor>& tensors, int rank_count, int rank, Partition partition, uint64_t seed);
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  State& state() { return state_; }
  void fill(uint64_t seed);  // fills the pieces from full_tensor_bytes()
  void poison();             // sets every byte to 0xa5
  bool holds(uint64_t seed) const;
  bool is_poisoned() const;

 private:
  void add_piece(StateTensor& tensor, int64_t offset, int64_t count);
  void add_slices(StateTensor& tensor, int rank_count, int rank, uint64_t seed);
  std::byte* allocate(int64_t size_bytes);
  State state_;
  std::vector<TestTensor> shapes_;  // in the order of state_.tensors
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

/// Returns the scalars of every Shard.
std::map<std::string, Scalar> test_scalars();

/// Saves `tensors`, filled with random values from `seed`, from `rank_count` ranks. Throws std::runtime_error with the
/// error of rank 0 if that fails.
void save_test_state(const std::filesystem::path& directory, const std::vector<TestTensor>& tensors, uint64_t seed = 1,
                     int64_t step = 100, int rank_count = 1);

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& bytes);

/// Returns the number of open file descriptors of this process.
int open_descriptors();

}  // namespace aliquot::test
