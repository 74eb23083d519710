#include "engine/run/state_digests.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>

#include "engine/plan/sizes.h"
#include "engine/plan/slices.h"
#include "engine/run/updater.h"
#include "kernels/system/booking.h"
#include "kernels/system/error.h"
#include "kernels/system/host_name.h"

namespace aliquot {
namespace {

constexpr std::array<std::string_view, kStatePartCount> kPartNames = {"parameters", "masters", "optimizer state"};

std::string node_name(const Topology& topology, int rank) {
  return fmt::format("node {}, host {}", topology.node_of_rank[static_cast<std::size_t>(rank)], host_name());
}

/// The arguments for elements [begin, end) of `args`. Arrays that the host cannot address are copied to memory of this
/// object.
class Chunk {
 public:
  Chunk(const UpdateArgs& args, const HostView& view, int64_t begin, int64_t end) : view_(view), args_(args) {
    const Segment* const last = args.segments + args.segment_count;
    for (const Segment* s = args.segments; s != last; ++s) {
      const int64_t from = std::max(begin, s->offset), to = std::min(end, s->offset + s->count);
      if (from < to) segments_.push_back({from - begin, to - from, 0, 0});
    }
    args_.segments = segments_.data();
    args_.segment_count = static_cast<int64_t>(segments_.size());
    args_.count = end - begin;
    check_ = *args.check;
    for (uint64_t*& digests : check_.digests) digests = digests == nullptr ? nullptr : digests + begin / kBlockElements;
    args_.check = &check_;
    const int64_t count = args_.count;
    args_.master.whole = at(args.master.whole, 4 * begin, 4 * count);
    args_.master.copy = at(args.master.copy, 2 * begin, 2 * count);
    args_.master.high = at(args.master.high, 2 * begin, 2 * count);
    args_.master.low = at(args.master.low, 2 * begin, 2 * count);
    for (int s = 0; s < kMaxStates; ++s)
      args_.states[s] =
          at(args.states[s], state_offset_bytes(args.moments, s, begin), state_offset_bytes(args.moments, s, count));
  }
  const UpdateArgs& args() const { return args_; }

 private:
  template <typename T>
  T* at(T* array, int64_t offset_bytes, int64_t size_bytes) {
    if (array == nullptr) return nullptr;
    std::byte* from = reinterpret_cast<std::byte*>(array) + offset_bytes;
    if (view_.is_host_addressable(from)) return reinterpret_cast<T*>(from);
    auto& copy = staging_.emplace_back(static_cast<std::size_t>(size_bytes));
    view_.fetch(copy.data(), from, size_bytes);
    return reinterpret_cast<T*>(copy.data());
  }

  const HostView& view_;
  UpdateArgs args_;
  StateCheck check_;
  std::vector<Segment> segments_;
  std::vector<std::vector<std::byte>> staging_;
};

}  // namespace

StateDigests::StateDigests(const Plan& plan, const MeshGroups& groups, const StepMemory& memory, const HostView& view)
    : plan_(plan),
      memory_(memory),
      view_(view),
      world_rank_(groups.world().rank()),
      rank_(groups.shard_group().rank()),
      tensor_(groups.coordinates().tensor) {
  if (!plan.policy.check_state) return;
  node_ = node_name(plan.world, world_rank_);
  updated_.resize(plan.flats.size());
  others_.resize(plan.flats.size());
  const int stage = plan.schedule.zero_stage, last = plan.topology.rank_count() - 1;
  for (int32_t f = 0; f < static_cast<int32_t>(plan.flats.size()); ++f) {
    Part &updated = updated_[f], &others = others_[f];
    updated.flat = others.flat = f;
    if (plan.trains(f)) set_ranks(updated, stage == 0 ? 0 : rank_, stage == 0 ? last : rank_, -1);
    if (plan.compares_outside_updates(f))
      set_ranks(others, stage == 3 ? rank_ : 0, stage == 3 ? rank_ : last, plan.flats[f].trainable ? rank_ : -1);
    updated.is_updated = true;
    set_digests(updated);
    set_digests(others);
  }
  if (view.device().kind() != DeviceKind::kHost) set_device_tables();
}

/// Only on GPUs. Allocates the memory in which kernels store differences. Sets the addresses of the segment tables in
/// device memory. Digests use the table of the update, of which they read only offsets and counts.
void StateDigests::set_device_tables() {
  stream_ = view_.device().make_stream(Lane::kCompute);
  found_ = view_.device().allocate_host(static_cast<int64_t>(2 * updated_.size() * sizeof(FoundDifference)),
                                        "differences of the state");
  std::uninitialized_fill_n(found(0), 2 * updated_.size(), FoundDifference{});
  for (std::size_t f = 0; f < updated_.size(); ++f) {
    Part &updated = updated_[f], &others = others_[f];
    updated.check.found = updated.momentum_check.found = found(f);
    others.check.found = found(updated_.size() + f);
    std::byte* table = memory_.peek(Role::kSegments, updated.flat);
    if (table == nullptr) continue;
    updated.args.segments = reinterpret_cast<const Segment*>(table);
    table += updated_segment_bytes(plan_, updated.flat);
    view_.store(table, others.segments.data(), static_cast<int64_t>(others.segments.size() * sizeof(Segment)));
    others.args.segments = reinterpret_cast<const Segment*>(table);
  }
}

/// Sets the elements of a part: those of the shards of the ranks from `first_rank` to `last_rank`, but not those of
/// `skipped_rank`.
void StateDigests::set_ranks(Part& part, int first_rank, int last_rank, int skipped_rank) const {
  const int64_t shard = plan_.flats[part.flat].layout.shard_count();
  part.first_element = first_rank * shard;
  for (int r = first_rank; r <= last_rank; ++r) {
    if (r == skipped_rank) continue;
    for (const Piece& piece : slice_pieces(plan_, part.flat, r, tensor_))
      part.segments.push_back({(r - first_rank) * shard + piece.shard_offset, piece.count, 0, 0});
  }
  part.args.segments = part.segments.data();
  part.args.segment_count = static_cast<int64_t>(part.segments.size());
  part.args.count = (last_rank - first_rank + 1) * shard;
}

/// Sets the addresses of the digests. The buffer holds them in the order of StatePart.
void StateDigests::set_digests(Part& part) {
  std::byte* buffer = memory_.peek(Role::kStateDigests, part.flat);
  if (buffer == nullptr || part.segments.empty()) return;
  auto* next = reinterpret_cast<uint64_t*>(buffer);
  const int64_t stored_from = plan_.schedule.zero_stage == 3 ? rank_ * plan_.flats[part.flat].layout.shard_count() : 0;
  auto& [parameters, master, optimizer] = part.check.digests;
  parameters = next + (part.first_element - stored_from) / kBlockElements;
  next += needed_bytes(plan_, Role::kParameters, part.flat) / element_bytes(plan_.policy.precision.compute) /
          kBlockElements;
  const int64_t blocks = plan_.updated_count(part.flat) / kBlockElements;
  if (part.is_updated && plan_.policy.precision.has_master()) {
    master = next;
    next += blocks;
  }
  if (part.is_updated && plan_.state_bytes_per_block(part.flat) > 0) optimizer = next;
  part.check.nanoseconds = &nanoseconds_;
  part.check.on_difference = [this, &part](const StateDifference& difference, int64_t step) {
    report(part, difference, step);
  };
  part.momentum_check = part.check;
  part.momentum_check.digests = {nullptr, nullptr, optimizer};
  part.args.check = &part.check;
}

const StateCheck* StateDigests::update(int32_t flat) const {
  if (updated_.empty()) return nullptr;
  memory_.declare_access(Role::kStateDigests, flat, AccessMode::kReadsAndWrites);
  return updated_[flat].segments.empty() ? nullptr : &updated_[flat].check;
}

const StateCheck* StateDigests::muon_momentum(int32_t flat) const {
  return update(flat) == nullptr ? nullptr : &updated_[flat].momentum_check;
}

/// Returns a Master through which update kernels access only the parameters at `at`. Parameters in 16 bits are passed
/// as the upper halves of masters.
Master StateDigests::parameters_only(std::byte* at) const {
  if (!plan_.policy.precision.has_master()) return {.whole = reinterpret_cast<float*>(at)};
  return {.high = reinterpret_cast<uint16_t*>(at)};
}

void StateDigests::compare(Stream& lane, UnitId unit, int64_t step) {
  const Role role = plan_.policy.offload_parameters == Offload::kNone ? Role::kParameters : Role::kStagedShard;
  for (const int32_t f : plan_.flats_of_unit[unit]) {
    if (!plan_.compares_outside_updates(f)) continue;
    Part& part = others_[f];
    part.args.master = parameters_only(memory_.address(role, f, AccessMode::kReads));
    memory_.declare_access(Role::kStateDigests, f, AccessMode::kReads);
    memory_.declare_access(Role::kSegments, f, AccessMode::kReads);
    if (!part.segments.empty()) update_kernels(view_.device().kind()).compare(lane, part.args, step);
  }
}

UpdateArgs StateDigests::args_between_steps(const Part& part, const Updater& updater) const {
  UpdateArgs args = part.args;
  const Precision& precision = plan_.policy.precision;
  std::byte* values = memory_.address_between_steps(Role::kParameters, part.flat);
  if (plan_.schedule.zero_stage < 3) values += part.first_element * element_bytes(precision.compute);
  args.master = parameters_only(values);
  if (!part.is_updated) return args;
  std::byte* master = memory_.address_between_steps(Role::kMaster, part.flat);
  if (precision.split()) {
    args.master.low = reinterpret_cast<int16_t*>(master);
  } else if (precision.has_master()) {
    args.master = {.whole = reinterpret_cast<float*>(master), .copy = values, .copy_dtype = precision.compute};
  }
  const auto& states = updater.states(part.flat);
  for (std::size_t s = 0; s < states.size(); ++s) args.states[s] = updater.state(part.flat, s);
  if (!states.empty()) args.moments = states.front().dtype;
  return args;
}

/// Calls body(part, args) for the whole state.
template <typename Body>
void StateDigests::for_parts(const Updater& updater, const Body& body) const {
  for (const auto* parts : {&updated_, &others_}) {
    for (const Part& part : *parts) {
      if (!part.segments.empty()) body(part, args_between_steps(part, updater));
    }
  }
}

/// On hosts: calls body(part, args, first element of args) for chunks of the whole state.
template <typename Body>
void StateDigests::for_chunks(const Updater& updater, const Body& body) const {
  constexpr int64_t kBytesPerElement = 4 + 4 + kMaxStates * 4;
  const int64_t staging = plan_.schedule.stream_bytes;
  const Booking booking(view_.device().ledger(), staging, Category::kStaging, "digests of the state");
  const int64_t most = std::max<int64_t>(1, staging / kBytesPerElement / kBlockElements) * kBlockElements;
  for_parts(updater, [&](const Part& part, const UpdateArgs& args) {
    for (int64_t begin = 0; begin < args.count; begin += most) {
      const Chunk chunk(args, view_, begin, std::min(args.count, begin + most));
      body(part, chunk.args(), begin);
    }
  });
}

void StateDigests::begin_step(const Updater& updater) {
  if (updated_.empty() || recorded_) return;
  recorded_ = true;
  if (!stream_)
    return for_chunks(updater,
                      [](const Part&, const UpdateArgs& args, int64_t) { record_digests(args, 0, args.count); });
  for_parts(updater,
            [&](const Part&, const UpdateArgs& args) { update_kernels(view_.device().kind()).record(*stream_, args); });
  stream_->synchronize();
}

void StateDigests::compare_all(const Updater& updater, int64_t step) const {
  if (updated_.empty() || !recorded_) return;
  if (stream_) {
    for_parts(updater, [&](const Part&, const UpdateArgs& args) {
      update_kernels(view_.device().kind()).compare(*stream_, args, step);
    });
    stream_->synchronize();
    return throw_if_found();
  }
  for_chunks(updater, [&](const Part& part, const UpdateArgs& args, int64_t begin) {
    if (auto difference = find_difference(args, 0, args.count)) {
      difference->block += begin / kBlockElements;
      report(part, *difference, step);
    }
  });
}

bool StateDigests::has_found() const {
  if (!stream_) return false;
  for (std::size_t p = 0; p < 2 * updated_.size(); ++p) {
    if (std::atomic_ref(found(p)->step).load() != FoundDifference::kNone) return true;
  }
  return false;
}

/// Reports the difference that was found in the earliest step.
void StateDigests::throw_if_found() const {
  if (!stream_) return;
  const Part* first = nullptr;
  for (const auto* parts : {&updated_, &others_}) {
    for (const Part& part : *parts) {
      if (first == nullptr || part.check.found->step < first->check.found->step) first = &part;
    }
  }
  const FoundDifference& what = *first->check.found;
  if (what.exists()) report(*first, what.difference(), static_cast<int64_t>(what.step));
}

void StateDigests::report(const Part& part, const StateDifference& difference, int64_t step) const {
  const FlatSpec& spec = plan_.flats[part.flat];
  const int64_t block = part.first_element / kBlockElements + difference.block;
  throw FaultError(fmt::format(
      "silent data corruption, found in step {}: the {} of unit {} on rank {} ({}) changed after the last "
      "update; block {} of its flat buffer, {}, is the first that differs; resume from an earlier checkpoint, and test "
      "the memory of this machine",
      step, kPartNames[static_cast<std::size_t>(difference.part)], plan_.model.units[spec.unit].name, world_rank_,
      node_, block, block_text(plan_, part.flat, block, tensor_)));
}

}  // namespace aliquot
