#include "engine/run/encoded_moves.h"

namespace aliquot {

EncodedMoves::EncodedMoves(const Plan& plan, const StepMemory& memory, Communicator& ranks, const Kernels& kernels)
    : plan_(plan),
      memory_(memory),
      ranks_(ranks),
      kernels_(kernels),
      nodes_(plan.topology.node_count()),
      on_each_(plan.topology.rank_count() / nodes_) {
  for (const FlatSpec& flat : plan.flats) routes_.push_back(routes(flat.layout.shard_count()));
}

void EncodedMoves::add(Runs& runs, const Transfer& transfer) const {
  runs.all_bytes += transfer.size_bytes;
  if (transfer.source == ranks_.rank() || transfer.target == ranks_.rank()) runs.own.push_back(transfer);
}

/// In an order that all ranks share, whoever they are.
EncodedMoves::Routes EncodedMoves::routes(int64_t shard_count) const {
  const int64_t part = encoded_bytes(shard_count), sent = shard_count * element_bytes(plan_.policy.precision.sent());
  Routes routes;
  for (int node = 0; node < nodes_; ++node) {
    for (int place = 0; place < on_each_; ++place) {
      const int32_t source = rank_at(node, place);
      for (int other = 0; other < nodes_; ++other) {  // between nodes
        const int32_t target = rank_at(other, place);
        if (other != node) add(routes.refresh, {source, target, node * part, node * part, part});
        add(routes.cross, {source, target, other * part, node * part, part});
      }
      for (int neighbour = 0; neighbour < on_each_; ++neighbour) {  // within the node
        const int32_t target = rank_at(node, neighbour);
        for (int other = 0; other < nodes_; ++other) {
          add(routes.gather, {source, target, other * part, rank_at(other, place) * part, part});
          add(routes.meet, {source, target, rank_at(other, neighbour) * sent, (place * nodes_ + other) * sent, sent});
        }
      }
    }
  }
  return routes;
}

void EncodedMoves::move(Stream& lane, Role to, Role from, int32_t flat, const Runs& runs, Label label) {
  ranks_.transfer(
      lane,
      {memory_.range(to, flat, Touch::kWrites), memory_.range(from, flat, Touch::kReads), runs.own, runs.all_bytes},
      label);
}

void EncodedMoves::refresh(Stream& lane, int32_t flat, Label label) {
  const int64_t count = plan_.flats[flat].layout.shard_count();
  const int64_t own = ranks_.rank() / on_each_ * encoded_bytes(count);
  kernels_.encode(lane, {.from = memory_.address(Role::kParameters, flat, Touch::kReads),
                         .from_dtype = plan_.policy.precision.compute,
                         .to = memory_.address(Role::kEncodedShards, flat, Touch::kWrites) + own,
                         .part_count = 1,
                         .count = count});
  if (nodes_ > 1) move(lane, Role::kEncodedShards, Role::kEncodedShards, flat, routes_[flat].refresh, label);
}

void EncodedMoves::gather(Stream& lane, int32_t flat, Label label) {
  if (on_each_ > 1) move(lane, Role::kEncodedWhole, Role::kEncodedShards, flat, routes_[flat].gather, label);
  kernels_.decode(
      lane, {.from = memory_.address(on_each_ > 1 ? Role::kEncodedWhole : Role::kEncodedShards, flat, Touch::kReads),
             .to = memory_.address(Role::kGathered, flat, Touch::kWrites),
             .to_dtype = plan_.policy.precision.compute,
             .part_count = ranks_.rank_count(),
             .count = plan_.flats[flat].layout.shard_count()});
}

void EncodedMoves::reduce_scatter(Stream& lane, int32_t flat, const ReduceScatter& what, Label label) {
  const int64_t count = what.part_count, sums_bytes = count * static_cast<int64_t>(sizeof(float));
  std::byte* sums = memory_.address(Role::kNodeSums, flat, Touch::kReadsAndWrites);
  Encode encode{.from = what.from.buffer->local() + what.from.offset_bytes,
                .from_dtype = what.from_dtype,
                .to = memory_.address(Role::kEncodedSums, flat, Touch::kWrites),
                .carried = memory_.address(Role::kCarried, flat, Touch::kReadsAndWrites),
                .part_count = nodes_,
                .count = count};
  if (on_each_ > 1) {
    const Runs& meet = routes_[flat].meet;
    ranks_.transfer(lane, {memory_.range(Role::kMet, flat, Touch::kWrites), what.from, meet.own, meet.all_bytes},
                    label);
    const int64_t met_bytes = nodes_ * count * element_bytes(what.from_dtype);
    kernels_.sum_tree(lane, {.bases = sources(memory_.address(Role::kMet, flat, Touch::kReads), on_each_, met_bytes),
                             .from_dtype = what.from_dtype,
                             .to = sums,
                             .count = nodes_ * count});
    encode.from = sums;
    encode.from_dtype = DType::kFloat32;
  }
  kernels_.encode(lane, encode);
  move(lane, Role::kEncodedReceived, Role::kEncodedSums, flat, routes_[flat].cross, label);
  kernels_.decode(lane, {.from = memory_.address(Role::kEncodedReceived, flat, Touch::kReads),
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

void EncodedMoves::exchange(Stream& lane, int32_t flat, Communicator& peers, Label label) {
  const int parts = peers.rank_count();
  const int64_t shard_count = plan_.flats[flat].layout.shard_count(), count = shard_count / parts;
  const int64_t part = encoded_bytes(count);
  const SymmetricRange sent = memory_.range(Role::kEncodedSums, flat, Touch::kReads),
                       got = memory_.range(Role::kEncodedReceived, flat, Touch::kWrites);
  std::byte* sums = memory_.address(Role::kNodeSums, flat, Touch::kReadsAndWrites);
  std::byte* codes = memory_.address(Role::kEncodedReceived, flat, Touch::kReads);
  std::byte* carried = memory_.address(Role::kCarried, flat, Touch::kReadsAndWrites);
  kernels_.encode(lane, {.from = memory_.address(Role::kAcross, flat, Touch::kReads),
                         .to = memory_.address(Role::kEncodedSums, flat, Touch::kWrites),
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
      lane, {.bases = sources(sums, 1, 0),
             .to = memory_.address(Role::kReduced, flat, Touch::kWrites),
             .to_dtype = plan_.policy.precision.gradients,
             .count = shard_count,
             .block_squares = reinterpret_cast<double*>(memory_.address(Role::kSquares, flat, Touch::kWrites))});
}

/// Stay in place until the work has run: the norm ends a step, and this lane's work with it.
std::span<const std::byte* const> EncodedMoves::sources(const std::byte* first, int count, int64_t stride_bytes) {
  if (next_sources_ == sources_.size()) sources_.emplace_back();
  auto& list = sources_[next_sources_++];
  list.clear();
  for (int i = 0; i < count; ++i) list.push_back(first + i * stride_bytes);
  return list;
}

}  // namespace aliquot
