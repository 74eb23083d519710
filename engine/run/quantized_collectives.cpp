#include "engine/run/quantized_collectives.h"

namespace aliquot {

QuantizedCollectives::QuantizedCollectives(const Plan& plan, const StepMemory& memory, Communicator& ranks,
                                           const Kernels& kernels)
    : plan_(plan),
      memory_(memory),
      ranks_(ranks),
      kernels_(kernels),
      nodes_(plan.topology.node_count()),
      ranks_per_node_(plan.topology.rank_count() / nodes_) {
  for (const FlatSpec& flat : plan.flats) transfers_.push_back(flat_transfers(flat.layout.shard_count()));
}

void QuantizedCollectives::add(RankTransfers& transfers, const Transfer& transfer) const {
  transfers.all_bytes += transfer.size_bytes;
  if (transfer.source == ranks_.rank() || transfer.target == ranks_.rank()) transfers.own.push_back(transfer);
}

/// Returns the transfers of a flat buffer, in the same order on all ranks.
QuantizedCollectives::FlatTransfers QuantizedCollectives::flat_transfers(int64_t shard_count) const {
  const int64_t part = encoded_bytes(shard_count), sent = shard_count * element_bytes(plan_.policy.precision.sent());
  FlatTransfers flat_transfers;
  for (int node = 0; node < nodes_; ++node) {
    for (int place = 0; place < ranks_per_node_; ++place) {
      const int32_t source = rank_of(node, place);
      for (int other = 0; other < nodes_; ++other) {  // transfers between nodes
        const int32_t target = rank_of(other, place);
        if (other != node) add(flat_transfers.refresh, {source, target, node * part, node * part, part});
        add(flat_transfers.between_nodes, {source, target, other * part, node * part, part});
      }
      for (int neighbour = 0; neighbour < ranks_per_node_; ++neighbour) {  // transfers within the node
        const int32_t target = rank_of(node, neighbour);
        for (int other = 0; other < nodes_; ++other) {
          add(flat_transfers.gather, {source, target, other * part, rank_of(other, place) * part, part});
          add(flat_transfers.within_node,
              {source, target, rank_of(other, neighbour) * sent, (place * nodes_ + other) * sent, sent});
        }
      }
    }
  }
  return flat_transfers;
}

void QuantizedCollectives::move(Stream& lane, Role to, Role from, int32_t flat, const RankTransfers& transfers,
                                Label label) {
  ranks_.transfer(lane,
                  {memory_.range(to, flat, AccessMode::kWrites), memory_.range(from, flat, AccessMode::kReads),
                   transfers.own, transfers.all_bytes},
                  label);
}

void QuantizedCollectives::gather_quantized_shards(Stream& lane, int32_t flat, Label label) {
  const int64_t count = plan_.flats[flat].layout.shard_count();
  const int64_t own = ranks_.rank() / ranks_per_node_ * encoded_bytes(count);
  kernels_.encode(lane, {.from = memory_.address(Role::kParameters, flat, AccessMode::kReads),
                         .from_dtype = plan_.policy.precision.compute,
                         .to = memory_.address(Role::kQuantizedShards, flat, AccessMode::kWrites) + own,
                         .part_count = 1,
                         .count = count});
  if (nodes_ > 1) move(lane, Role::kQuantizedShards, Role::kQuantizedShards, flat, transfers_[flat].refresh, label);
}

void QuantizedCollectives::gather(Stream& lane, int32_t flat, Label label) {
  if (ranks_per_node_ > 1)
    move(lane, Role::kQuantizedParameters, Role::kQuantizedShards, flat, transfers_[flat].gather, label);
  kernels_.decode(
      lane, {.from = memory_.address(ranks_per_node_ > 1 ? Role::kQuantizedParameters : Role::kQuantizedShards, flat,
                                     AccessMode::kReads),
             .to = memory_.address(Role::kGathered, flat, AccessMode::kWrites),
             .to_dtype = plan_.policy.precision.compute,
             .part_count = ranks_.rank_count(),
             .count = plan_.flats[flat].layout.shard_count()});
}

void QuantizedCollectives::reduce_scatter(Stream& lane, int32_t flat, const ReduceScatter& what, Label label) {
  const int64_t count = what.part_count, sums_bytes = count * static_cast<int64_t>(sizeof(float));
  std::byte* sums = memory_.address(Role::kFp32Sums, flat, AccessMode::kReadsAndWrites);
  Encode encode{.from = what.from.buffer->local() + what.from.offset_bytes,
                .from_dtype = what.from_dtype,
                .to = memory_.address(Role::kQuantizedSums, flat, AccessMode::kWrites),
                .carried = memory_.address(Role::kErrorFeedbackResidual, flat, AccessMode::kReadsAndWrites),
                .part_count = nodes_,
                .count = count};
  if (ranks_per_node_ > 1) {
    const RankTransfers& within_node = transfers_[flat].within_node;
    ranks_.transfer(lane,
                    {memory_.range(Role::kNodePartialSums, flat, AccessMode::kWrites), what.from, within_node.own,
                     within_node.all_bytes},
                    label);
    const int64_t met_bytes = nodes_ * count * element_bytes(what.from_dtype);
    kernels_.sum_tree(lane, {.bases = sources(memory_.address(Role::kNodePartialSums, flat, AccessMode::kReads),
                                              ranks_per_node_, met_bytes),
                             .from_dtype = what.from_dtype,
                             .to = sums,
                             .count = nodes_ * count});
    encode.from = sums;
    encode.from_dtype = DType::kFloat32;
  }
  kernels_.encode(lane, encode);
  move(lane, Role::kQuantizedReceived, Role::kQuantizedSums, flat, transfers_[flat].between_nodes, label);
  kernels_.decode(lane, {.from = memory_.address(Role::kQuantizedReceived, flat, AccessMode::kReads),
                         .to = sums,
                         .part_count = nodes_,
                         .count = count});
  kernels_.sum_tree(lane, {.bases = sources(sums, nodes_, sums_bytes),
                           .to = what.to,
                           .to_dtype = what.to_dtype,
                           .count = count,
                           .factor = what.factor,
                           .block_squares = what.block_squares});
}

void QuantizedCollectives::replica_all_reduce(Stream& lane, int32_t flat, Communicator& peers, Label label) {
  const int parts = peers.rank_count();
  const int64_t shard_count = plan_.flats[flat].layout.shard_count(), count = shard_count / parts;
  const int64_t part = encoded_bytes(count);
  const SymmetricRange sent = memory_.range(Role::kQuantizedSums, flat, AccessMode::kReads, GroupId::kReplica),
                       got = memory_.range(Role::kQuantizedReceived, flat, AccessMode::kWrites, GroupId::kReplica);
  std::byte* sums = memory_.address(Role::kFp32Sums, flat, AccessMode::kReadsAndWrites);
  std::byte* codes = memory_.address(Role::kQuantizedReceived, flat, AccessMode::kReads);
  std::byte* carried = memory_.address(Role::kErrorFeedbackResidual, flat, AccessMode::kReadsAndWrites);
  kernels_.encode(lane, {.from = memory_.address(Role::kReplicaPartialSums, flat, AccessMode::kReads),
                         .to = memory_.address(Role::kQuantizedSums, flat, AccessMode::kWrites),
                         .carried = carried,
                         .part_count = parts,
                         .count = count});
  peers.all_to_all(lane, got, sent, part, label);
  kernels_.decode(lane, {.from = codes, .to = sums, .part_count = parts, .count = count});
  kernels_.sum_tree(
      lane, {.bases = sources(sums, parts, count * static_cast<int64_t>(sizeof(float))), .to = sums, .count = count});
  kernels_.encode(lane, {.from = sums,
                         .to = codes + peers.rank() * part,
                         .carried = carried + parts * part,
                         .part_count = 1,
                         .count = count});
  peers.all_gather_in_place(lane, got, part, label);
  kernels_.decode(lane, {.from = codes, .to = sums, .part_count = parts, .count = count});
  kernels_.sum_tree(
      lane,
      {.bases = sources(sums, 1, 0),
       .to = memory_.address(Role::kReducedGradients, flat, AccessMode::kWrites),
       .to_dtype = plan_.policy.precision.gradients,
       .count = shard_count,
       .block_squares = reinterpret_cast<double*>(memory_.address(Role::kBlockSquares, flat, AccessMode::kWrites))});
}

/// Returns a list of addresses that exists until the work has run. The norm waits for the lane before the step ends, so
/// begin_step() may reuse the lists.
std::span<const std::byte* const> QuantizedCollectives::sources(const std::byte* first, int count,
                                                                int64_t stride_bytes) {
  if (next_sources_ == sources_.size()) sources_.emplace_back();
  auto& list = sources_[next_sources_++];
  list.clear();
  for (int i = 0; i < count; ++i) list.push_back(first + i * stride_bytes);
  return list;
}

}  // namespace aliquot
