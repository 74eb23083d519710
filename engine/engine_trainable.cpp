// Freezing and unfreezing between steps: another plan, and what was trained carried over to it.
#include <cstring>
#include <fmt/format.h>
#include <map>

#include "engine/engine.h"
#include "engine/gather_in_parts.h"
#include "engine/running.h"
#include "sharding/exchange_purpose.h"

namespace aliquot {
namespace {

struct Extent {
  int64_t offset, count;
};

void read_piece(const StateTensor& tensor, const StatePiece& piece, std::byte* to) {
  const int64_t each = element_bytes(tensor.dtype), most = kStagingChunkBytes / each;
  if (tensor.access == nullptr) {
    std::memcpy(to, piece.bytes, static_cast<std::size_t>(piece.count * each));
    return;
  }
  for (int64_t done = 0; done < piece.count; done += most)
    tensor.access->read(piece, done, std::min(most, piece.count - done), to + done * each);
}

void write_piece(const StateTensor& tensor, const StatePiece& piece, const std::byte* from) {
  const int64_t each = element_bytes(tensor.dtype), most = kStagingChunkBytes / each;
  if (tensor.access == nullptr) {
    std::memcpy(piece.bytes, from, static_cast<std::size_t>(piece.count * each));
    return;
  }
  for (int64_t done = 0; done < piece.count; done += most)
    tensor.access->write(piece, done, std::min(most, piece.count - done), from + done * each);
}

/// What this rank holds of the tensor, for all to read.
std::string packed(const StateTensor& tensor) {
  std::string bytes;
  for (const StatePiece& piece : tensor.pieces) {
    if (piece.copy) continue;
    const Extent extent = {piece.offset, piece.count};
    const std::size_t at = bytes.size();
    bytes.resize(at + sizeof extent + static_cast<std::size_t>(piece.count * element_bytes(tensor.dtype)));
    std::memcpy(bytes.data() + at, &extent, sizeof extent);
    read_piece(tensor, piece, reinterpret_cast<std::byte*>(bytes.data() + at + sizeof extent));
  }
  return bytes;
}

std::vector<std::byte> assembled(const StateTensor& tensor, const std::vector<std::string>& ranks) {
  const int64_t each = element_bytes(tensor.dtype);
  std::vector<std::byte> whole(static_cast<std::size_t>(tensor.size_bytes()));
  for (const std::string& rank : ranks) {
    for (std::size_t at = 0; at < rank.size();) {
      Extent extent;
      std::memcpy(&extent, rank.data() + at, sizeof extent);
      const auto size = static_cast<std::size_t>(extent.count * each);
      std::memcpy(whole.data() + extent.offset * each, rank.data() + at + sizeof extent, size);
      at += sizeof extent + size;
    }
  }
  return whole;
}

/// A tensor at a time, whole on every rank for a moment.
void carry_over(const State& before, const State& after, Communicator& ranks) {
  std::map<std::string, const StateTensor*> by_path;
  for (const StateTensor& tensor : after.tensors) by_path[tensor.path] = &tensor;
  for (const StateTensor& tensor : before.tensors) {
    const auto found = by_path.find(tensor.path);
    if (found == by_path.end()) continue;  // moments of what is frozen now; the same on every rank
    const auto whole = assembled(tensor, gather_in_parts(ranks, "carrying over " + tensor.path, packed(tensor)));
    for (const StatePiece& piece : found->second->pieces)
      write_piece(*found->second, piece, whole.data() + piece.offset * element_bytes(tensor.dtype));
  }
}

}  // namespace

void Engine::set_trainable(std::string_view prefix, bool trainable) {
  running("freezing or unfreezing").require_between_steps("set_trainable()");
  const ExchangePurpose purpose("change what is trainable", step_count_);
  const State before = state();
  std::vector<Declared> changed = declared_;
  int count = 0;
  for (Declared& declared : changed) {
    for (ParameterSpec& parameter : declared.spec.parameters) {
      if (!parameter.tensor.name.starts_with(prefix)) continue;
      parameter.tensor.trainable = trainable;
      ++count;
    }
  }
  if (count == 0) throw UsageError(fmt::format("no parameter's name begins with \"{}\"", prefix));
  auto plan = std::make_unique<Plan>(make_plan(changed));
  const Plan evaluation = agreed_evaluation(*plan);
  replace(std::move(changed), std::move(plan), evaluation, before);
}

/// What fails leaves the engine as it was.
void Engine::replace(std::vector<Declared> declared, std::unique_ptr<Plan> plan, const Plan& evaluation,
                     const State& before) {
  const bool records = running_->recorder.has_value();
  std::unique_ptr<Running> old = std::move(running_);
  std::swap(declared_, declared);
  std::swap(plan_, plan);
  compute_stream_ = std::move(old->lanes[static_cast<std::size_t>(Lane::kCompute)]);
  try {
    make_running(evaluation);
    initialize_parameters(
        [](const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, 0.0f); });
    carry_over(before, state(), world_.communicator());
  } catch (...) {
    if (running_) compute_stream_ = std::move(running_->lanes[static_cast<std::size_t>(Lane::kCompute)]);
    std::swap(declared_, declared);
    std::swap(plan_, plan);
    old->lanes[static_cast<std::size_t>(Lane::kCompute)] = std::move(compute_stream_);
    running_ = std::move(old);
    running_->bindings.guard_all();
    throw;
  }
  old.reset();
  running_->bindings.guard_all();
  if (records) record_timelines();
  world_.communicator().gather_objects("carried over");  // nobody reads a peer's shard before it is there
}

}  // namespace aliquot
