#include "sharding/comm/direct_communicator.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "kernels/elementwise/kernels.h"
#include "kernels/system/booking.h"
#include "kernels/system/fault_point.h"
#include "sharding/comm/board.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/comm/reduction.h"
#include "sharding/groups.h"

namespace aliquot {
namespace {

/// Shared memory through which ranks exchange the values of an all-reduce. Each rank has two mailboxes per lane and
/// alternates between them, so that it never overwrites values that a slower rank still reads.
class Mailboxes {
 public:
  static constexpr int64_t kBytesPerRank =
      kLaneCount * 2 * Communicator::kSmallCount * static_cast<int64_t>(sizeof(double));

  explicit Mailboxes(std::unique_ptr<NodeMapping> memory) : memory_(std::move(memory)) {}

  double* of(int rank, Lane lane, uint64_t sequence) const {
    const int64_t place =
        (static_cast<int64_t>(lane) * 2 + static_cast<int64_t>(sequence % 2)) * Communicator::kSmallCount;
    return reinterpret_cast<double*>(memory_->writable + rank * kBytesPerRank) + place;
  }

 private:
  std::unique_ptr<NodeMapping> memory_;
};

class DirectCommunicator final : public Communicator {
 public:
  DirectCommunicator(Device& device, std::unique_ptr<Bootstrap> bootstrap, std::shared_ptr<const Topology> topology,
                     const DirectTransport& transport)
      : device_(device),
        bootstrap_(std::move(bootstrap)),
        topology_(std::move(topology)),
        transport_(transport),
        node_memory_(transport.make_node_memory(*bootstrap_)),
        peer_memory_(transport.make_peer_memory(*bootstrap_, *node_memory_, device)),
        signals_(transport.make_signals(*bootstrap_, *node_memory_, device, signals_options())),
        mailboxes_(node_memory_->map(Mailboxes::kBytesPerRank * rank_count(), "mailboxes")),
        booked_memory_(device.ledger(), own_bytes(rank_count()), Category::kArena, "mailboxes and signals") {
    bootstrap_->set_last_operation([this](int of_rank) { return signals_->last_operation(of_rank); });
  }
  ~DirectCommunicator() override { bootstrap_->set_last_operation({}); }

  int rank() const override { return bootstrap_->rank(); }
  int rank_count() const override { return bootstrap_->rank_count(); }
  const Topology& topology() const override { return *topology_; }
  std::string describe() const override { return fmt::format("{}, {}", transport_.name, node_memory_->describe()); }

  SymmetricBuffer allocate(int64_t own_bytes, RankSizes sizes, Category category, std::string_view owner) override {
    arrive_at_rendezvous();
    return peer_memory_->allocate(own_bytes, sizes, category, owner);
  }
  std::optional<SharedRange> allocate_shared(int64_t size_bytes, int64_t own_bytes, Category category,
                                             std::string_view owner) override {
    arrive_at_rendezvous();
    return peer_memory_->allocate_shared(size_bytes, own_bytes, category, owner);
  }

  void all_gather(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) override {
    arrive_and_wait(stream, describe_all_gather(to, from, part_bytes, label), label);
    for_peers([&](int peer) {
      copy(stream, to.buffer->local() + to.offset_bytes + peer * part_bytes, from, peer, 0, part_bytes);
    });
  }

  void all_gather_in_place(Stream& stream, SymmetricRange whole, int64_t part_bytes, Label label) override {
    arrive_and_wait(stream, describe_all_gather_in_place(whole, part_bytes, label), label);
    for_peers([&](int peer) {
      const int64_t place = peer * part_bytes;
      if (peer != rank())
        copy(stream, whole.buffer->local() + whole.offset_bytes + place, whole, peer, place, part_bytes);
    });
  }

  void reduce_scatter(Stream& stream, const ReduceScatter& what, Label label) override {
    arrive_and_wait(stream, describe_reduce_scatter(what, label), label);
    const int64_t part_bytes = what.part_count * element_bytes(what.from_dtype);
    const int part = what.part_of(rank(), rank_count());
    device_.kernels().sum_tree(stream, {.bases = what.from.buffer->peers(),
                                        .offset_bytes = what.from.offset_bytes + part * part_bytes,
                                        .from_dtype = what.from_dtype,
                                        .to = what.to,
                                        .to_dtype = what.to_dtype,
                                        .count = what.part_count,
                                        .factor = what.factor,
                                        .block_squares = what.block_squares});
  }

  void all_to_all(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) override {
    arrive_and_wait(stream, describe_all_to_all(to, from, part_bytes, label), label);
    for_peers([&](int peer) {
      copy(stream, to.buffer->local() + to.offset_bytes + peer * part_bytes, from, peer, rank() * part_bytes,
           part_bytes);
    });
  }

  void transfer(Stream& stream, const Transfers& what, Label label) override {
    arrive_and_wait(stream, describe_transfer(what, label), label);
    for (const Transfer& one : what.own) {
      if (one.target != rank()) continue;
      copy(stream, what.to.buffer->local() + what.to.offset_bytes + one.to_bytes, what.from, one.source, one.from_bytes,
           one.size_bytes);
    }
  }

  void broadcast(Stream& stream, SymmetricRange range, int64_t size_bytes, int root, Label label) override {
    arrive_and_wait(stream, describe_broadcast(range, size_bytes, root, label), label);
    if (rank() != root) copy(stream, range.buffer->local() + range.offset_bytes, range, root, 0, size_bytes);
  }

  void all_reduce(Stream& stream, std::span<double> values, Reduction reduction, Label label) override {
    if (static_cast<int64_t>(values.size()) > kSmallCount) {
      throw UsageError(fmt::format("all_reduce of {} values: expected at most {}", values.size(), kSmallCount));
    }
    const uint64_t sequence = issued_counts_[static_cast<std::size_t>(stream.lane())] + 1;
    stream.run([this, values, at = stream.lane(), sequence] {
      std::copy(values.begin(), values.end(), mailboxes_.of(rank(), at, sequence));
    });
    arrive_and_wait(stream, describe_all_reduce(static_cast<int64_t>(values.size()), reduction, label), label);
    stream.run([this, values, at = stream.lane(), sequence, reduction] {
      reduce_in_tree(values, rank_count(), reduction, [&](int r) { return mailboxes_.of(r, at, sequence); });
    });
  }

  void barrier(Stream& stream, Label label) override { arrive_and_wait(stream, describe_barrier(label), label); }

  void publish(Stream& stream, uint64_t progress) override { signals_->publish(stream, progress); }
  void await(Stream& stream, Lane lane, uint64_t progress, Label label) override {
    signals_->await_progress(stream, lane, progress, label);
  }

  std::vector<std::string> gather_objects(std::string_view own) override {
    pass_fault_point("exchange of objects");
    arrive_at_rendezvous();
    return bootstrap_->all_gather(own);
  }

  std::unique_ptr<Communicator> split(int color, int key, std::string_view name) override {
    pass_fault_point("split of a group");
    arrive_at_rendezvous();
    const RankGroup group = agree_on_group(*bootstrap_, color, key);
    DirectTransport transport = transport_;
    transport.group = name;
    auto topology = std::make_shared<const Topology>(topology_of_group(*topology_, group.members));
    return make_direct_communicator(device_, bootstrap_->split(color, key), std::move(topology), transport);
  }

  void abort(std::string_view why) noexcept override {
    signals_->abort(why);
    bootstrap_->abort(why);
  }

 private:
  /// A failed exchange fails on all ranks, as callers expect.
  void pass_fault_point(std::string_view name) {
    try {
      fault_point(rank(), name);
    } catch (const FaultError& error) {
      abort(error.what());
      throw CommunicationError(error.what());
    }
  }

  SignalsOptions signals_options() const {
    return {.rank = rank(),
            .rank_count = rank_count(),
            .timeout_seconds = transport_.timeout_seconds,
            .global_ranks = renumbered_ranks(),
            .group = transport_.group,
            .aborted_elsewhere = [this](std::string* why) { return bootstrap_->aborted(why); },
            .has_returned = [this](int of_rank) { return bootstrap_->has_returned(of_rank); },
            .awaited_by = [this](int of_rank) { return bootstrap_->awaited_by(of_rank); },
            .abort_elsewhere = [this](std::string_view why) { bootstrap_->abort(why); }};
  }

  /// Returns the ranks in the world, or an empty vector if they have the same numbers as in this group.
  std::vector<int> renumbered_ranks() const {
    for (int r = 0; r < rank_count(); ++r) {
      if (bootstrap_->global_rank(r) != r) return global_ranks_of(*bootstrap_);
    }
    return {};
  }

  /// This rank's part of the group's shared memory, in bytes, for its ledger.
  static int64_t own_bytes(int rank_count) {
    return Mailboxes::kBytesPerRank + Board::size_bytes(rank_count) / rank_count;
  }

  /// Every function that gathers through the bootstrap calls this first, so that ranks in a collective can report it.
  void arrive_at_rendezvous() { signals_->arrive_at_rendezvous(collective_purpose().what); }

  /// Makes later work on the stream wait until all ranks have arrived at this collective with their data ready.
  void arrive_and_wait(Stream& stream, const OperationDescription& what, Label label) {
    const uint64_t sequence = ++issued_counts_[static_cast<std::size_t>(stream.lane())];
    signals_->arrive(stream, sequence, what, label);
    signals_->await_arrivals(stream, sequence, what, label);
  }

  /// Calls `body` for every rank, starting with the rank after this one. The ranks therefore do not all read from one
  /// rank at the same time.
  template <typename Body>
  void for_peers(Body body) const {
    for (int i = 1; i <= rank_count(); ++i) body((rank() + i) % rank_count());
  }

  void copy(Stream& stream, void* to, SymmetricRange from, int peer, int64_t skip_bytes, int64_t size_bytes) {
    if (size_bytes == 0) return;
    device_.kernels().copy(stream, to, from.buffer->peer(peer) + from.offset_bytes + skip_bytes, size_bytes);
  }

  Device& device_;
  std::unique_ptr<Bootstrap> bootstrap_;
  std::shared_ptr<const Topology> topology_;
  DirectTransport transport_;
  std::unique_ptr<NodeMemory> node_memory_;
  std::unique_ptr<PeerMemory> peer_memory_;
  std::unique_ptr<Signals> signals_;
  Mailboxes mailboxes_;
  Booking booked_memory_;
  std::array<uint64_t, kLaneCount> issued_counts_{};
};

}  // namespace

DirectTransport host_direct_transport(double timeout_seconds) {
  DirectTransport transport;
  transport.make_signals = [](Bootstrap&, NodeMemory& memory, Device&, const SignalsOptions& options) {
    return make_host_signals(memory.map(Board::size_bytes(options.rank_count), "signals"), options);
  };
  transport.make_peer_memory = [](Bootstrap& bootstrap, NodeMemory& memory, Device& device) {
    return make_host_peer_memory(memory, device.ledger(), bootstrap);
  };
  transport.timeout_seconds = timeout_seconds;
  return transport;
}

std::unique_ptr<Communicator> make_direct_communicator(Device& device, std::unique_ptr<Bootstrap> bootstrap,
                                                       std::shared_ptr<const Topology> topology,
                                                       const DirectTransport& transport) {
  return std::make_unique<DirectCommunicator>(device, std::move(bootstrap), std::move(topology), transport);
}

}  // namespace aliquot
