// Loads weights into the shards of any number of ranks, or into a new checkpoint.
#include <algorithm>
#include <chrono>
#include <deque>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/file/convert.h"
#include "checkpoint/file/io_lane.h"
#include "checkpoint/file/tensor_entry.h"
#include "checkpoint/save.h"
#include "checkpoint/weights/weights.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/comm/run_on_all_or_throw.h"
#include "sharding/state_pieces.h"

namespace aliquot {
namespace {

constexpr std::string_view kParameters = "parameters/";

/// Whether the model has an output head of its own, so is not tied.
bool has_head(const State& state) {
  const std::string head = std::string(kParameters) + "lm_head.weight";
  return std::ranges::any_of(state.tensors, [&](const StateTensor& tensor) { return tensor.path == head; });
}

struct WeightMatches {
  std::vector<std::pair<const StateTensor*, const WeightTensor*>> matches;  // null WeightTensor: fill with zeros
  std::vector<std::string> missing;
};

WeightMatches match_weights(const State& state, const WeightFiles& weights, const std::filesystem::path& path,
                            bool allow_missing) {
  WeightMatches result;
  std::vector<std::string> defects;
  std::set<std::string_view> wanted;
  for (const StateTensor& tensor : state.tensors) {
    if (!tensor.path.starts_with(kParameters)) continue;
    const std::string name = tensor.path.substr(kParameters.size());
    const WeightTensor* found = weights.find(name);
    if (found == nullptr) {
      result.missing.push_back(name);
      if (!allow_missing) defects.push_back(fmt::format("{} is missing from the file", name));
    } else {
      wanted.insert(found->name);
      if (found->entry->shape != tensor.shape) {
        defects.push_back(fmt::format("{} is {} in the file and {} in the model", name,
                                      describe(tensor.dtype, found->entry->shape),
                                      describe(tensor.dtype, tensor.shape)));
      }
    }
    result.matches.emplace_back(&tensor, found);
  }
  for (const WeightTensor& tensor : weights.tensors()) {
    if (!wanted.contains(tensor.name)) defects.push_back(fmt::format("{} is only in the file", printable(tensor.name)));
  }
  if (defects.empty()) return result;
  // The maximum number of tensors in the message. If the weights belong to another model, hundreds may differ.
  constexpr std::size_t kMaxListed = 4;
  const std::size_t more = defects.size() > kMaxListed ? defects.size() - kMaxListed : 0;
  defects.resize(defects.size() - more);
  throw UsageError(fmt::format("the weights of {} do not fit this model: {}{}", path.string(), fmt::join(defects, "; "),
                               more > 0 ? fmt::format("; and {} more", more) : ""));
}

/// Fills the pieces of one tensor, a staging chunk at a time.
void load_tensor(const StateTensor& tensor, const WeightTensor* from, std::span<std::byte> chunk) {
  const int64_t width = element_bytes(tensor.dtype), at_once = static_cast<int64_t>(chunk.size()) / width;
  std::optional<WeightAccess> access;
  if (from != nullptr) access.emplace(*from, tensor.dtype);
  for (const StatePiece& piece : tensor.pieces) {
    for_each_range(piece, width, 0, piece.count, at_once, [&](int64_t first, int64_t last) {
      const auto bytes = chunk.first(static_cast<size_t>((last - first) * width));
      if (access) {
        access->read({}, first, last - first, bytes.data());
      } else {
        std::fill(bytes.begin(), bytes.end(), std::byte{0});
      }
      write_overlaps(tensor, piece, first, bytes);
    });
  }
}

}  // namespace

LoadReport load_weights(const State& state, Communicator& communicator, const std::filesystem::path& path,
                        const LoadOptions& options) {
  const ScopedCollectivePurpose purpose("load weights");
  const auto begun = std::chrono::steady_clock::now();
  FileSystem& file_system = options.file_system != nullptr ? *options.file_system : FileSystem::system();
  LoadReport report;
  report.path = path;
  std::optional<WeightFiles> weights;
  WeightMatches found;
  // Check everything before the state is modified.
  run_on_all_or_throw(communicator, [&] {
    weights.emplace(WeightFiles::open(file_system, path, has_head(state) ? EqualHead::kKeep : EqualHead::kLeaveOut));
    found = match_weights(state, *weights, path, options.allow_missing);
    for (const auto& [tensor, from] : found.matches) {
      if (from != nullptr) WeightAccess(*from, tensor->dtype);
    }
  });
  run_on_all_or_throw(communicator, [&] {
    const StagingRing ring(options.ledger);
    for (const auto& [tensor, from] : found.matches) load_tensor(*tensor, from, ring.chunk(0));
  });
  report.missing = std::move(found.missing);
  report.extra = weights->skipped_tensors();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return report;
}

ImportReport import_weights(Communicator& communicator, const std::filesystem::path& file,
                            const std::filesystem::path& directory, const std::map<std::string, Scalar>& scalars,
                            EqualHead equal_head) {
  const WeightFiles weights = WeightFiles::open(FileSystem::system(), file, equal_head);
  ImportReport report{.path = {},
                      .tensor_count = weights.tensors().size(),
                      .skipped_tensors = weights.skipped_tensors(),
                      .rounded = {}};
  State state;
  state.scalars = scalars;
  std::deque<WeightAccess> accesses;
  for (const WeightTensor& from : weights.tensors()) {
    StateTensor& tensor = state.tensors.emplace_back();
    tensor.path = std::string(kParameters) + from.name;
    tensor.shape = from.entry->shape;
    tensor.dtype = DType::kFloat32;
    tensor.access = &accesses.emplace_back(from, tensor.dtype);
    tensor.pieces = {{.offset = 0, .count = tensor.element_count()}};
    if (!is_exactly_convertible(tensor.dtype, *from.entry->dtype)) report.rounded.push_back(from.name);
  }
  report.path =
      save(state, communicator, directory, {.written_by = {{"imported_from", file.filename().string()}}}).path;
  return report;
}

}  // namespace aliquot
