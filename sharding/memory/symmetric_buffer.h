#pragma once
// Memory that peers can read.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

/// The same number of bytes on every rank of a group. local() is this rank's own, to read and write; peers on the same
/// node read it at peer(rank). Allocated by a communicator, collectively; freed, not collectively, when it goes out of
/// scope: no rank may still be reading. Move-only; must not outlive its communicator.
class SymmetricBuffer {
 public:
  /// What keeps the memory mapped and booked; a communicator's own.
  struct Backing {
    virtual ~Backing() = default;
  };

  SymmetricBuffer() = default;
  SymmetricBuffer(std::unique_ptr<Backing> backing, std::byte* local, std::vector<const std::byte*> peers,
                  int64_t size_bytes)
      : backing_(std::move(backing)), local_(local), peers_(std::move(peers)), size_bytes_(size_bytes) {}

  std::byte* local() const { return local_; }
  /// Where this rank reads rank's bytes; null where no load reaches them (another node, another kind of memory).
  const std::byte* peer(int rank) const { return peers_[rank]; }
  /// All of peer(0..), stable while the buffer lives, wherever it is moved to.
  std::span<const std::byte* const> peers() const { return peers_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::unique_ptr<Backing> backing_;
  std::byte* local_ = nullptr;
  std::vector<const std::byte*> peers_;
  int64_t size_bytes_ = 0;
};

/// One range of bytes that every rank of a group sees whole, at an address of its own: shards laid in it side by side are
/// a gathered unit with no byte moved. Each rank writes its own part only, through writable(). Otherwise as above.
class SharedRange {
 public:
  SharedRange() = default;
  SharedRange(std::unique_ptr<SymmetricBuffer::Backing> backing, std::byte* writable, const std::byte* readable,
              int64_t size_bytes)
      : backing_(std::move(backing)), writable_(writable), readable_(readable), size_bytes_(size_bytes) {}

  std::byte* writable() const { return writable_; }
  /// The same bytes; where the world can, mapped so that a write faults.
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
