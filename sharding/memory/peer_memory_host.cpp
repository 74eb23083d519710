#include <optional>
#include <string>

#include "kernels/system/booking.h"
#include "sharding/comm/run_on_all_or_throw.h"
#include "sharding/memory/peer_memory.h"

namespace aliquot {
namespace {

constexpr int64_t kPageBytes = 4096;

/// A mapping and its entry in the ledger.
struct BookedMapping final : SymmetricBuffer::Backing {
  BookedMapping(std::unique_ptr<NodeMapping> owned, Booking line)
      : mapping(std::move(owned)), booking(std::move(line)) {}
  std::unique_ptr<NodeMapping> mapping;
  Booking booking;
};

class HostPeerMemory final : public PeerMemory {
 public:
  HostPeerMemory(NodeMemory& memory, Ledger& ledger, Bootstrap& bootstrap)
      : memory_(memory), ledger_(ledger), bootstrap_(bootstrap) {}

  SymmetricBuffer allocate(int64_t size_bytes, int64_t own_bytes, Category category, std::string_view owner) override {
    // Each rank's part starts on a page, so that no two ranks write to the same page or cache line.
    const int64_t stride = (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    const int rank_count = bootstrap_.rank_count();
    Booking booking = book(size_bytes, own_bytes, category, owner);
    auto mapping = memory_.map(stride * rank_count, owner);
    std::byte* local = mapping->writable + stride * bootstrap_.rank();
    std::vector<const std::byte*> peers;
    for (int r = 0; r < rank_count; ++r) peers.push_back(mapping->readable + stride * r);
    auto backing = std::make_unique<BookedMapping>(std::move(mapping), std::move(booking));
    return SymmetricBuffer(std::move(backing), local, std::move(peers), own_bytes);
  }

  std::optional<SharedRange> allocate_shared(int64_t size_bytes, int64_t own_bytes, Category category,
                                             std::string_view owner) override {
    Booking booking = book(size_bytes, own_bytes, category, owner);
    auto mapping = memory_.map(size_bytes, owner);
    std::byte* writable = mapping->writable;
    const std::byte* readable = mapping->readable;
    auto backing = std::make_unique<BookedMapping>(std::move(mapping), std::move(booking));
    return SharedRange(std::move(backing), writable, readable, size_bytes);
  }

 private:
  /// Counts the bytes in the ledger on all ranks, or throws on all of them. Otherwise, if one rank exceeded its limit,
  /// the other ranks would wait for it in map().
  Booking book(int64_t size_bytes, int64_t own_bytes, Category category, std::string_view owner) {
    std::optional<Booking> booking;
    const auto sizes = gather_or_throw(bootstrap_, [&] {
      booking.emplace(ledger_, own_bytes, category, owner);
      return std::to_string(size_bytes);
    });
    expect_same_sizes(bootstrap_, sizes, owner);
    return std::move(*booking);
  }

  NodeMemory& memory_;
  Ledger& ledger_;
  Bootstrap& bootstrap_;
};

}  // namespace

std::unique_ptr<PeerMemory> make_host_peer_memory(NodeMemory& memory, Ledger& ledger, Bootstrap& bootstrap) {
  return std::make_unique<HostPeerMemory>(memory, ledger, bootstrap);
}

}  // namespace aliquot
