#pragma once
// What the tests of checkpoints share: ranks, states cut in any way, directories that go away.

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

/// A directory of its own beneath the system's temporary one, removed with all in it.
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

/// Runs `body` on that many ranks, as threads. Returns what each rank threw, empty strings where nothing.
std::vector<std::string> on_ranks(int rank_count, const std::function<void(Communicator&)>& body);

/// What a tensor is, without its bytes.
struct TestTensor {
  std::string path;
  std::vector<int64_t> shape;
  DType dtype;
};

/// Every dtype, scalars, empty tensors, primes, sizes around pages and tiles.
std::vector<TestTensor> edge_case_tensors();
/// A few small tensors.
std::vector<TestTensor> small_tensors();

/// Bytes that depend on path, seed and place alone.
std::vector<std::byte> full_tensor_bytes(const TestTensor& tensor, uint64_t seed);

enum class Partition { kBlocks, kRandom };

/// One rank's part of a state, with its memory. Blocks: one flat buffer of whole blocks in equal shards. Anywhere:
/// pieces of any length, dealt to ranks at random by `seed`, in an order of tensors that differs from rank to rank.
class Shard {
 public:
  Shard(const std::vector<TestTensor>& tensors, int rank_count, int rank, Partition cut, uint64_t seed);
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  State& state() { return state_; }
  void fill(uint64_t seed);  // the pieces' share of full_tensor_bytes
  void poison();             // every byte 0xa5
  bool holds(uint64_t seed) const;
  bool is_poisoned() const;

 private:
  void add_piece(StateTensor& tensor, int64_t offset, int64_t count);
  State state_;
  std::vector<TestTensor> shapes_;  // in the state's order
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

/// The scalars every test saves.
std::map<std::string, Scalar> test_scalars();

/// Saves `tensors`, filled by `seed`, from that many ranks. Throws what the first rank threw.
void save_test_state(const std::filesystem::path& directory, const std::vector<TestTensor>& tensors, uint64_t seed = 1,
                     int64_t step = 100, int rank_count = 1);

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& bytes);

/// Descriptors this process has open.
int open_descriptors();

}  // namespace aliquot::test
