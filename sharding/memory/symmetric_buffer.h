#pragma once
// Buffers that other ranks can read.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

/// Whether the parts of all ranks must have the same size.
enum class RankSizes : uint8_t { kEqual, kMayDiffer };

/// A buffer with one part on every rank of a group. The parts may have different sizes. A rank reads and writes its own
/// part at local(), and reads the part of rank r on the same node at peer(r). Communicator::allocate() creates the
/// buffer collectively. The destructor frees the memory without waiting, so other ranks must have finished reading it.
/// Move-only. The communicator must outlive the buffer.
class SymmetricBuffer {
 public:
  /// Owns the memory and its entry in the ledger. Implemented by communicators.
  struct Backing {
    virtual ~Backing() = default;
  };

  SymmetricBuffer() = default;
  SymmetricBuffer(std::unique_ptr<Backing> backing, std::byte* local, std::vector<const std::byte*> peers,
                  int64_t size_bytes)
      : backing_(std::move(backing)), local_(local), peers_(std::move(peers)), size_bytes_(size_bytes) {}

  std::byte* local() const { return local_; }
  /// Returns the address at which this rank reads the bytes of `rank`. Returns null if this rank cannot address them,
  /// for example because `rank` is on another node.
  const std::byte* peer(int rank) const { return peers_[rank]; }
  /// Returns peer(r) for all ranks r. The span stays valid until the buffer is destroyed, even if the buffer is moved.
  std::span<const std::byte* const> peers() const { return peers_; }
  /// The size of the part of this rank.
  int64_t size_bytes() const { return size_bytes_; }
  const Backing* backing() const { return backing_.get(); }

  /// Returns a view of the same memory, with `ranks` as its peers. The view owns `backing`, but not the memory.
  SymmetricBuffer view(std::span<const int> ranks, std::unique_ptr<Backing> backing = nullptr) const {
    std::vector<const std::byte*> peers;
    for (const int rank : ranks) peers.push_back(peers_[static_cast<std::size_t>(rank)]);
    return {std::move(backing), local_, std::move(peers), size_bytes_};
  }

 private:
  std::unique_ptr<Backing> backing_;
  std::byte* local_ = nullptr;
  std::vector<const std::byte*> peers_;
  int64_t size_bytes_ = 0;
};

/// One memory range that all ranks of a group share, possibly at different addresses. If all shards of a unit are
/// stored in it, every rank can read the full parameters without a copy. Each rank writes only its own part, through
/// writable(). The rules for the lifetime are those of SymmetricBuffer.
class SharedRange {
 public:
  SharedRange() = default;
  SharedRange(std::unique_ptr<SymmetricBuffer::Backing> backing, std::byte* writable, const std::byte* readable,
              int64_t size_bytes)
      : backing_(std::move(backing)), writable_(writable), readable_(readable), size_bytes_(size_bytes) {}

  std::byte* writable() const { return writable_; }
  /// Returns the address for reading the same memory. The memory is mapped read-only there if possible, so that writes
  /// fault.
  const std::byte* readable() const { return readable_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::unique_ptr<SymmetricBuffer::Backing> backing_;
  std::byte* writable_ = nullptr;
  const std::byte* readable_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace aliquot
#pragma GCC visibility pop
