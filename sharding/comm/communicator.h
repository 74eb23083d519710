#pragma once
// How bytes move between ranks.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/formats/dtype.h"
#include "kernels/system/error.h"
#include "sharding/comm/reduce_staging.h"
#include "sharding/memory/symmetric_buffer.h"
#include "sharding/topology.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// A collective that did not come to its end: a rank missing at the deadline, a rank that failed, ranks that disagree.
class CommunicationError : public FaultError {
 public:
  using FaultError::FaultError;
};

/// What a collective is for, in messages and records. `what` must outlive the collective.
struct Label {
  std::string_view what;  // "h.7"
  int64_t step = -1;
};

/// A place in a symmetric buffer: the same offset on every rank.
struct SymmetricRange {
  const SymmetricBuffer* buffer = nullptr;
  int64_t offset_bytes = 0;
};

/// Sums every rank's `from`, rank_count() parts of `part_count` elements, and leaves part rank() of the sum in `to`.
struct ReduceScatter {
  SymmetricRange from;
  DType from_dtype = DType::kFloat32;  // fp32, or 16 bits with the sum in fp32
  void* to = nullptr;                  // local memory; may be part rank() of the own `from`
  DType to_dtype = DType::kFloat32;
  int64_t part_count = 0;
  float factor = 1.0f;              // applied to the finished sum: 1 / rank_count() is the mean
  double* block_squares = nullptr;  // see TreeSum
  bool in_tree_order = false;       // where the world's own order of addition is another: as all other worlds add
  /// reduce_staging(topology(), part_count).size_bytes() of memory that allocate() made: untouched until the work has run.
  std::byte* staging = nullptr;
};

/// A run of bytes from a rank to a rank, which may be the same. Offsets count in the ranges of its collective.
struct Transfer {
  int32_t source, target;
  int64_t from_bytes, to_bytes, size_bytes;

  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// Runs of any lengths at once. `own` are those that this rank sends or receives, in an order that all ranks share; they stay
/// alive until the work has run. What one writes no other reads or writes.
struct Transfers {
  SymmetricRange to, from;
  std::span<const Transfer> own;
  int64_t all_bytes = 0;  // of all ranks' transfers
  bool back = false;      // tells two apart that are of the same bytes, there and back
};

enum class Reduction : uint8_t { kSum, kMax, kMin };

/// The ranks of one group. Calls are collective: all ranks make the same calls with the same arguments, in one order a
/// lane (the stream's) and, over NCCL, in one order over all lanes. Those that take a stream only enqueue; their buffers
/// stay alive, and `from` unchanged, until the work has finished on *every* rank, which publish() and await() tell.
/// Used from the rank's own thread. Throws CommunicationError (from the call, or through the stream that the work runs
/// on) naming operation, sequence number and the ranks that are missing or differ; nothing was read from a peer that
/// differs, but over NCCL between nodes, where nothing is compared. After an error only abort() and destruction are allowed.
/// The order of addition is the aligned binary tree over ranks, partial sums in fp32, in every world but NCCL, whose own it
/// is unless in_tree_order is asked for.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int rank_count() const = 0;
  virtual const Topology& topology() const = 0;
  virtual std::string describe() const = 0;  // "threads", "mpi, shared memory inside a node", ...

  /// Blocks until all ranks have called it. Page-aligned, not initialised. Booked in the rank's ledger. Throws on all ranks:
  /// UnavailableError if one cannot have it, CommunicationError if they ask for different sizes.
  virtual SymmetricBuffer allocate(int64_t size_bytes, Category category, std::string_view owner) = 0;
  /// The same, of `size_bytes` in all, `own_bytes` of it booked here; nothing where the group does not share memory.
  virtual std::optional<SharedRange> allocate_shared(int64_t size_bytes, int64_t own_bytes, Category category,
                                                     std::string_view owner) = 0;

  /// Leaves all ranks' `from`, of `part_bytes` each, in rank order at `to`, which does not overlap it.
  virtual void all_gather(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) = 0;
  /// The same where every rank's part lies in its place already.
  virtual void all_gather_in_place(Stream& stream, SymmetricRange whole, int64_t part_bytes, Label label) = 0;
  virtual void reduce_scatter(Stream& stream, const ReduceScatter& what, Label label) = 0;
  /// Part p of rank r's `from` becomes part r of rank p's `to`.
  virtual void all_to_all(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) = 0;
  /// Each run's source is read, and its target written, once all ranks have come.
  virtual void transfer(Stream& stream, const Transfers& what, Label label) = 0;
  virtual void broadcast(Stream& stream, SymmetricRange range, int64_t size_bytes, int root, Label label) = 0;
  /// Small things (losses, norms, flags) in host memory, summed in tree order; at most kSmallCount.
  virtual void all_reduce(Stream& stream, std::span<double> values, Reduction reduction, Label label) = 0;
  static constexpr int64_t kSmallCount = 512;
  virtual void barrier(Stream& stream, Label label) = 0;

  /// Publishes that this rank's `stream` has come to `progress`, which only grows on a lane.
  virtual void publish(Stream& stream, uint64_t progress) = 0;
  /// Work enqueued on `stream` after this starts only when every rank has published `progress` or more on `lane`: every
  /// rank, that is, that reads this one's memory; what ranks elsewhere need of it is sent, in the order of the streams.
  virtual void await(Stream& stream, Lane lane, uint64_t progress, Label label) = 0;

  /// Blocking, for set-up: every rank's bytes, of any length each, in rank order.
  virtual std::vector<std::string> gather_objects(std::string_view own) = 0;

  /// Ranks of one color become a group, ordered by key, then by rank. Blocking.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Makes every rank of the group leave whatever it waits in, with `why`. From any thread, at any time.
  virtual void abort(std::string_view why) noexcept = 0;
};

}  // namespace aliquot
#pragma GCC visibility pop
