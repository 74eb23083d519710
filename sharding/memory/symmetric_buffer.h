#pragma once
// Buffers that peers can read.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

/// A buffer of equal size on every rank of a group. A rank reads and writes its own part at local(), and reads the part
/// of rank r on the same node at peer(r). Communicator::allocate() creates it collectively. The destructor frees it
/// without waiting for other ranks, so no rank may still read it. Move-only. The communicator must outlive it.
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
  /// The address at which this rank reads the bytes of `rank`. Null if they are not addressable, such as on another
  /// node.
  const std::byte* peer(int rank) const { return peers_[rank]; }
  /// peer(r) for all ranks r. The span stays valid until the buffer is destroyed, also if the buffer is moved.
  std::span<const std::byte* const> peers() const { return peers_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::unique_ptr<Backing> backing_;
  std::byte* local_ = nullptr;
  std::vector<const std::byte*> peers_;
  int64_t size_bytes_ = 0;
};

/// One memory range that all ranks of a group share, possibly at different addresses. If all shards of a unit are
/// stored in it, every rank can read the full parameters without a copy. Each rank writes only its own part, through
/// writable(). Lifetime as for SymmetricBuffer.
class SharedRange {
 public:
  SharedRange() = default;
  SharedRange(std::unique_ptr<SymmetricBuffer::Backing> backing, std::byte* writable, const std::byte* readable,
              int64_t size_bytes)
      : backing_(std::move(backing)), writable_(writable), readable_(readable), size_bytes_(size_bytes) {}

  std::byte* writable() const { return writable_; }
  /// The same bytes; mapped read-only if possible, so that writes fault.
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
