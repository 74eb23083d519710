#pragma once
// Collective communication between ranks.

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

/// A collective did not complete: a rank was missing at the deadline, a rank failed, or ranks made different calls. If
/// a rank failed, exit_code() is that of its error.
class CommunicationError : public FaultError {
 public:
  using FaultError::FaultError;
  CommunicationError(ExitCode exit_code, const std::string& message) : FaultError(exit_code, message) {}
};

/// Identifies a collective in messages and flight records. `what` must outlive the collective.
struct Label {
  std::string_view what;  // e.g. "h.7"
  int64_t step = -1;
};

/// A position in a symmetric buffer. The offset is the same on every rank.
struct SymmetricRange {
  const SymmetricBuffer* buffer = nullptr;
  int64_t offset_bytes = 0;
};

/// Sums `from` over all ranks and writes one part of the sum to `to`: part number (rank() + shift) % rank_count().
/// `from` consists of rank_count() parts of `part_count` elements each.
struct ReduceScatter {
  SymmetricRange from;
  DType from_dtype = DType::kFloat32;  // fp32 or a 16-bit type; the sum is computed in fp32
  void* to = nullptr;                  // local memory; without a shift, may be part rank() of this rank's `from`
  DType to_dtype = DType::kFloat32;
  int64_t part_count = 0;
  float factor = 1.0f;              // multiplies the complete sum; 1 / rank_count() gives the mean
  double* block_squares = nullptr;  // see TreeSum::block_squares
  /// Only for NCCL: adds in tree order, which gives the same bits as communicators without NCCL.
  bool in_tree_order = false;
  /// Memory of reduce_staging(topology(), part_count, alone).size_bytes() bytes. May be null if sum_needs_staging() is
  /// false for this sum. Reserved for this call until its work has finished.
  std::byte* staging = nullptr;
  /// Between host nodes: each rank receives the data of all ranks and adds its part alone. No rank adds the data of its
  /// node first. This gives the same bits with more traffic. Other communicators ignore it.
  bool alone = false;
  /// From 0 to rank_count() - 1. If it is not 0, each rank gets the part of another rank. The bits of a part do not
  /// depend on the rank that adds, if ranks use one instruction set or one model of GPU. Over NCCL, a call with a shift
  /// adds in tree order. A call without a shift gives the same bits only with in_tree_order.
  int shift = 0;

  int part_of(int rank, int rank_count) const { return (rank + shift) % rank_count; }
};

/// A copy of contiguous bytes from rank `source` to rank `target`, which may be the same rank. Offsets are relative to
/// the ranges of the collective.
struct Transfer {
  int32_t source, target;
  int64_t from_bytes, to_bytes, size_bytes;

  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// A collective of several transfers. `own` lists the transfers that this rank sends or receives, in an order that is
/// consistent across ranks. It must stay alive until the work has finished. No transfer may read or write bytes that
/// another transfer writes.
struct Transfers {
  SymmetricRange to, from;
  std::span<const Transfer> own;
  int64_t all_bytes = 0;  // number of bytes in the transfers of all ranks
  bool back = false;      // true if these transfers return results of earlier ones; for messages
};

enum class Reduction : uint8_t { kSum, kMax, kMin };

/// Collectives over the ranks of one group. All ranks must make the same calls with the same arguments, in the same
/// order on each lane. With NCCL, the order over all lanes must also be the same. Each rank calls from its own thread.
///
/// Calls with a stream only enqueue work. Their buffers must stay alive, and `from` unchanged, until the work has
/// finished on every rank. Use publish() and await() to wait for this.
///
/// Errors: CommunicationError names the operation, its sequence number and the ranks that are missing or differ. Either
/// the call throws it, or the stream that executes the work. Ranks compare their calls before data moves, except with
/// NCCL between nodes. After an error, only abort() and the destructor may be called.
///
/// Sums use a fixed binary tree over ranks with fp32 partial sums. Only NCCL adds in its own order, unless
/// in_tree_order is set.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int rank_count() const = 0;
  virtual const Topology& topology() const = 0;
  virtual std::string describe() const = 0;  // e.g. "threads, one heap"

  /// Allocates `own_bytes` of page-aligned, uninitialised memory on this rank, and counts them in its ledger. All ranks
  /// must pass the same `sizes`. Collective; blocks. Throws on all ranks: UnavailableError if an allocation fails,
  /// CommunicationError if `sizes` is kEqual and the sizes of the ranks differ.
  virtual SymmetricBuffer allocate(int64_t own_bytes, RankSizes sizes, Category category, std::string_view owner) = 0;
  /// Allocates the same size on every rank.
  SymmetricBuffer allocate(int64_t size_bytes, Category category, std::string_view owner) {
    return allocate(size_bytes, RankSizes::kEqual, category, owner);
  }
  /// Allocates `size_bytes` once for all ranks, and counts `own_bytes` of them in this rank's ledger. Returns nullopt
  /// if the ranks do not share memory.
  virtual std::optional<SharedRange> allocate_shared(int64_t size_bytes, int64_t own_bytes, Category category,
                                                     std::string_view owner) = 0;

  /// Returns a view of `whole` whose peers are the ranks of this group. `whole` belongs to the communicator from which
  /// this one was split. `ranks` are the peers' rank numbers in that communicator. The view does not own memory, so
  /// `whole` must outlive it. Collective.
  virtual SymmetricBuffer attach(const SymmetricBuffer& whole, std::span<const int> ranks) { return whole.view(ranks); }

  /// Writes the `from` of all ranks, `part_bytes` each, to `to` in rank order. `to` must not overlap `from`.
  virtual void all_gather(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) = 0;
  /// An all-gather in which every rank's part is already at its position in `whole`.
  virtual void all_gather_in_place(Stream& stream, SymmetricRange whole, int64_t part_bytes, Label label) = 0;
  virtual void reduce_scatter(Stream& stream, const ReduceScatter& what, Label label) = 0;
  /// Copies part p of rank r's `from` to part r of rank p's `to`.
  virtual void all_to_all(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) = 0;
  /// Performs the transfers. Reads sources and writes targets only after all ranks have arrived.
  virtual void transfer(Stream& stream, const Transfers& what, Label label) = 0;
  virtual void broadcast(Stream& stream, SymmetricRange range, int64_t size_bytes, int root, Label label) = 0;
  /// Reduces at most kSmallCount values in host memory (losses, norms, flags), in tree order.
  virtual void all_reduce(Stream& stream, std::span<double> values, Reduction reduction, Label label) = 0;
  static constexpr int64_t kSmallCount = 512;
  virtual void barrier(Stream& stream, Label label) = 0;

  /// Publishes, in stream order, that this rank's `stream` has reached `progress`. Values must increase on each lane.
  virtual void publish(Stream& stream, uint64_t progress) = 0;
  /// Work enqueued on `stream` after this call starts only after every rank that reads this rank's memory has published
  /// at least `progress` on `lane`. The other ranks need no wait: they receive copies, which are sent in stream order.
  virtual void await(Stream& stream, Lane lane, uint64_t progress, Label label) = 0;

  /// Returns every rank's bytes, in rank order. Lengths may differ. Blocks; for set-up.
  virtual std::vector<std::string> gather_objects(std::string_view own) = 0;

  /// Lets the collectives of `lane` run at the same time as those of other lanes, also in backends that run the
  /// collectives of a group one after another (NCCL). Call it before the memory of these collectives is allocated, so
  /// that NCCL can register it. Collective; blocks. Does nothing in other backends.
  virtual void separate_lane(Lane /*lane*/) {}

  /// Whether a WorkCapture can capture collectives of this group. On a captured stream, publish() and await() do
  /// nothing: in place of await(), the caller must wait for events of its own lanes. True for a group of one rank.
  virtual bool can_capture() const { return rank_count() == 1; }
  /// Called before and after the launch of a WorkGraph with collectives of this group, on the stream of the launch. All
  /// ranks of the group must launch it. The timeout of collectives then applies to the whole graph. With
  /// `can_capture()` only.
  virtual void begin_graph(Stream& /*stream*/, Label /*label*/) {}
  virtual void end_graph(Stream& /*stream*/) {}

  /// Returns the group of ranks with the same color, ordered by key, then by rank. `name` describes the group in error
  /// messages and flight records, for example "shard group of pipeline stage 1". Blocks.
  virtual std::unique_ptr<Communicator> split(int color, int key, std::string_view name = {}) = 0;

  /// Makes all waiting calls of the group throw, with `why` as the reason. Callable from any thread at any time.
  virtual void abort(std::string_view why) noexcept = 0;
};

}  // namespace aliquot
#pragma GCC visibility pop
