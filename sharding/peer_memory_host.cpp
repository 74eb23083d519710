#include "kernels/booking.h"
#include "sharding/peer_memory.h"

namespace aliquot {
namespace {

constexpr int64_t kPageBytes = 4096;

/// A mapping and its line in the ledger.
struct BookedMapping final : SymmetricBuffer::Backing {
  BookedMapping(std::unique_ptr<NodeMapping> taken, Booking line)
      : mapping(std::move(taken)), booking(std::move(line)) {}
  std::unique_ptr<NodeMapping> mapping;
  Booking booking;
};

class HostPeerMemory final : public PeerMemory {
 public:
  HostPeerMemory(NodeMemory& memory, Ledger& ledger, PeerRanks ranks)
      : memory_(memory), ledger_(ledger), ranks_(ranks) {}

  SymmetricBuffer allocate(int64_t size_bytes, Category category, std::string_view owner) override {
    // Whole pages a rank, so that no page, and no line of a cache, is written by two.
    const int64_t stride = (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    auto mapping = memory_.map(stride * ranks_.rank_count, owner);
    std::byte* local = mapping->writable + stride * ranks_.rank;
    std::vector<const std::byte*> peers;
    for (int r = 0; r < ranks_.rank_count; ++r) peers.push_back(mapping->readable + stride * r);
    auto backing = std::make_unique<BookedMapping>(std::move(mapping), Booking(ledger_, size_bytes, category, owner));
    return SymmetricBuffer(std::move(backing), local, std::move(peers), size_bytes);
  }

  std::optional<SharedRange> allocate_shared(int64_t size_bytes, int64_t own_bytes, Category category,
                                             std::string_view owner) override {
    auto mapping = memory_.map(size_bytes, owner);
    std::byte* writable = mapping->writable;
    const std::byte* readable = mapping->readable;
    auto backing = std::make_unique<BookedMapping>(std::move(mapping), Booking(ledger_, own_bytes, category, owner));
    return SharedRange(std::move(backing), writable, readable, size_bytes);
  }

 private:
  NodeMemory& memory_;
  Ledger& ledger_;
  PeerRanks ranks_;
};

}  // namespace

std::unique_ptr<PeerMemory> make_host_peer_memory(NodeMemory& memory, Ledger& ledger, PeerRanks ranks) {
  return std::make_unique<HostPeerMemory>(memory, ledger, ranks);
}

}  // namespace aliquot
