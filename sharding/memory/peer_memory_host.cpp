#include <optional>
#include <string>
#include <vector>

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

  SymmetricBuffer allocate(int64_t own_bytes, RankSizes sizes, Category category, std::string_view owner) override {
    auto [booking, size_of_ranks] = book(own_bytes, own_bytes, category, owner);
    if (sizes == RankSizes::kEqual) expect_same_sizes(bootstrap_, size_of_ranks, owner);
    // Each rank's part starts on a page, so that no two ranks write to the same page or cache line.
    std::vector<int64_t> offsets{0};
    int64_t pages = 0;  // of the size `parsed`
    const std::string* parsed = nullptr;
    for (const std::string& size : size_of_ranks) {
      // Most ranks have the same size, and there may be thousands of them.
      if (parsed == nullptr || size != *parsed) pages = (std::stoll(size) + kPageBytes - 1) / kPageBytes;
      parsed = &size;
      offsets.push_back(offsets.back() + pages * kPageBytes);
    }
    auto mapping = memory_.map(offsets.back(), owner);
    offsets.pop_back();
    std::byte* local = mapping->writable + offsets[static_cast<std::size_t>(bootstrap_.rank())];
    std::vector<const std::byte*> peers;
    for (const int64_t offset : offsets) peers.push_back(mapping->readable + offset);
    auto backing = std::make_unique<BookedMapping>(std::move(mapping), std::move(booking));
    return SymmetricBuffer(std::move(backing), local, std::move(peers), own_bytes);
  }

  std::optional<SharedRange> allocate_shared(int64_t size_bytes, int64_t own_bytes, Category category,
                                             std::string_view owner) override {
    auto [booking, size_of_ranks] = book(own_bytes, size_bytes, category, owner);
    expect_same_sizes(bootstrap_, size_of_ranks, owner);
    auto mapping = memory_.map(size_bytes, owner);
    std::byte* writable = mapping->writable;
    const std::byte* readable = mapping->readable;
    auto backing = std::make_unique<BookedMapping>(std::move(mapping), std::move(booking));
    return SharedRange(std::move(backing), writable, readable, size_bytes);
  }

 private:
  struct Booked {
    Booking booking;
    std::vector<std::string> size_of_ranks;  // the argument `size_bytes` of every rank, as text
  };

  /// Counts `own_bytes` in the ledger on all ranks, or throws on all of them. Otherwise, if one rank exceeded its
  /// limit, the other ranks would wait for it in map().
  Booked book(int64_t own_bytes, int64_t size_bytes, Category category, std::string_view owner) {
    std::optional<Booking> booking;
    auto size_of_ranks = gather_or_throw(bootstrap_, [&] {
      booking.emplace(ledger_, own_bytes, category, owner);
      return std::to_string(size_bytes);
    });
    return {std::move(*booking), std::move(size_of_ranks)};
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
