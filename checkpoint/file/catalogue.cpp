#include "checkpoint/file/catalogue.h"

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <sstream>

#include "checkpoint/hash/sha256.h"
#include "kernels/system/error.h"
#include "sharding/comm/run_on_all_or_throw.h"
#include "sharding/state_pieces.h"

namespace aliquot {
namespace {

void check_pieces(const StateTensor& tensor, int64_t element_count) {
  for (const StatePiece& piece : tensor.pieces) {
    if (const std::string defect = piece_defect(piece, element_count); !defect.empty())
      throw UsageError(fmt::format("a piece of tensor {} {}", printable(tensor.path), defect));
  }
}

TensorEntry entry_of(const StateTensor& tensor) {
  if (const std::string defect = path_defect(tensor.path); !defect.empty()) {
    throw UsageError(fmt::format("tensor \"{}\" cannot be saved: its path {}", printable(tensor.path), defect));
  }
  TensorEntry entry;
  entry.path = tensor.path;
  entry.shape = tensor.shape;
  entry.dtype = tensor.dtype;
  entry.size_bytes = tensor.size_bytes();
  check_pieces(tensor, tensor.element_count());
  return entry;
}

int64_t value_bytes(const Scalar& scalar) {
  if (const auto* text = std::get_if<std::string>(&scalar)) return static_cast<int64_t>(text->size()) + 1;
  if (const auto* list = std::get_if<std::vector<int64_t>>(&scalar)) return static_cast<int64_t>(list->size()) * 8;
  if (const auto* list = std::get_if<std::vector<double>>(&scalar)) return static_cast<int64_t>(list->size()) * 8;
  return 8;
}

void check_scalars(const State& state) {
  int64_t total_bytes = 0;
  for (const auto& [name, value] : state.scalars) {
    const std::string defect = path_defect(name);
    if (!defect.empty() || name == "step" || name == "format_version") {
      throw UsageError(fmt::format("scalar \"{}\" cannot be saved: its name {}", printable(name),
                                   defect.empty() ? "is reserved for the checkpoint format" : defect));
    }
    const auto* text = std::get_if<std::string>(&value);
    if (text != nullptr && !is_plain_text(*text)) {
      throw UsageError(
          fmt::format("scalar {} cannot be saved: its value contains a NUL or is not UTF-8", printable(name)));
    }
    total_bytes += static_cast<int64_t>(name.size()) + value_bytes(value);
  }
  if (total_bytes > kScalarBytesLimit) {
    throw UsageError(fmt::format("the scalars take {} bytes, and the limit is {}: save large values as tensors",
                                 total_bytes, kScalarBytesLimit));
  }
  if (state.step < 0) throw UsageError(fmt::format("step {} cannot be saved: expected 0 or more", state.step));
}

std::string scalar_text(const Scalar& scalar) {
  std::string text = fmt::format("{}", scalar.index());
  const auto add = [&](auto value) { text += fmt::format(" {:x}", std::bit_cast<uint64_t>(value)); };
  if (const auto* integer = std::get_if<int64_t>(&scalar)) add(*integer);
  if (const auto* real = std::get_if<double>(&scalar)) add(*real);
  if (const auto* string = std::get_if<std::string>(&scalar)) text.append(" ").append(sha256_hex(*string));
  if (const auto* list = std::get_if<std::vector<int64_t>>(&scalar)) std::for_each(list->begin(), list->end(), add);
  if (const auto* list = std::get_if<std::vector<double>>(&scalar)) std::for_each(list->begin(), list->end(), add);
  return text;
}

/// Returns a description of everything that must be equal on all ranks, with one line for each item.
std::string shared_description(const State& state, const Catalogue& catalogue, const std::filesystem::path& directory) {
  std::string text = fmt::format("directory {}\nstep {}\n", directory.string(), state.step);
  for (const auto& [name, value] : state.scalars) text += fmt::format("scalar {} = {}\n", name, scalar_text(value));
  for (const TensorEntry& tensor : catalogue.tensors) {
    text += fmt::format("tensor {} {}\n", tensor.path, describe(tensor.dtype, tensor.shape));
  }
  return text;
}

/// Throws UsageError with the first line in which the text of a rank differs from that of rank 0. `texts` has the
/// texts of all ranks, so every rank throws the same error.
[[noreturn]] void throw_first_difference(const std::vector<std::string>& texts) {
  const auto rank = static_cast<size_t>(
      std::find_if(texts.begin(), texts.end(), [&](const std::string& text) { return text != texts[0]; }) -
      texts.begin());
  std::istringstream ours(texts[0]), theirs(texts[rank]);
  std::string our_line, their_line;
  while (std::getline(ours, our_line), std::getline(theirs, their_line), our_line == their_line) {
  }
  throw UsageError(fmt::format("ranks would save different states: rank {} has \"{}\" where rank 0 has \"{}\"", rank,
                               theirs ? printable(their_line) : "nothing", ours ? printable(our_line) : "nothing"));
}

std::vector<HeldPiece> saved_pieces(const Catalogue& catalogue, int32_t rank) {
  std::vector<HeldPiece> pieces;
  for (size_t tensor = 0; tensor < catalogue.own.size(); ++tensor) {
    const auto& own = catalogue.own[tensor]->pieces;
    for (size_t i = 0; i < own.size(); ++i) {
      const StatePiece& piece = own[i];
      if (piece.copy || piece.count == 0) continue;
      pieces.push_back({static_cast<int32_t>(tensor), extent_of(piece, 0, 1, rank, static_cast<int32_t>(i))});
    }
  }
  return pieces;
}

/// Throws UsageError unless the extents cover elements [0, element_count) without a gap or an overlap. In a band, the
/// first period is sufficient, because the owners repeat.
void check_extents_cover_tensor(const TensorEntry& entry, std::span<const StridedExtent> held) {
  const int64_t element_count = entry.size_bytes / element_bytes(entry.dtype);
  const Bands owners(held);
  int64_t end = 0;
  int32_t last_rank = 0;
  const auto expect_owner = [&](int64_t next) {
    if (end < next)
      throw UsageError(fmt::format("no rank holds element {} of tensor {}, which has {} elements", end,
                                   printable(entry.path), element_count));
  };
  for (const Band& band : owners.bands()) {
    expect_owner(band.begin);
    for (const FileExtent& extent : owners.period(band)) {
      expect_owner(extent.begin);
      if (extent.begin < end) {
        throw UsageError(fmt::format(
            "elements {} to {} of tensor {} are held by ranks {} and {}: set StatePiece::copy on all but one of them",
            extent.begin, std::min(end, extent.end) - 1, printable(entry.path), last_rank, extent.rank));
      }
      end = extent.end;
      last_rank = extent.rank;
    }
    expect_owner(band.begin + band.period);
    end = band.end;
  }
  expect_owner(element_count);
}

/// Throws UsageError unless the held pieces cover every tensor without a gap or an overlap.
void check_pieces_cover_tensors(const Catalogue& catalogue) {
  auto next = catalogue.held_pieces.begin();
  for (size_t tensor = 0; tensor < catalogue.tensors.size(); ++tensor) {
    std::vector<StridedExtent> held;
    for (; next != catalogue.held_pieces.end() && next->tensor == static_cast<int32_t>(tensor); ++next)
      held.push_back(next->elements);
    check_extents_cover_tensor(catalogue.tensors[tensor], held);
  }
}

}  // namespace

StridedExtent extent_of(const StatePiece& piece, int64_t begin, int64_t width, int32_t rank, int32_t source) {
  const int64_t run = run_elements(piece), runs = run_count(piece), first = begin + piece.offset * width;
  if (runs == 1 || piece.stride == run) return {first, piece.count * width, 0, 1, rank, source};
  return {first, run * width, piece.stride * width, runs, rank, source};
}

Catalogue local_catalogue(const State& state) {
  Catalogue catalogue;
  std::vector<const StateTensor*> sorted;
  for (const StateTensor& tensor : state.tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->path < b->path; });
  for (const StateTensor* tensor : sorted) catalogue.tensors.push_back(entry_of(*tensor));
  catalogue.own = std::move(sorted);
  if (const std::string path = path_conflict(catalogue.tensors); !path.empty()) {
    throw UsageError(
        fmt::format("tensor path {} is used twice, or is also the HDF5 group of another tensor", printable(path)));
  }
  return catalogue;
}

Catalogue agree_on_catalogue(const State& state, Communicator& communicator, const std::filesystem::path& directory) {
  Catalogue catalogue;
  std::string text;
  const auto digests = gather_or_throw(communicator, [&] {
    check_scalars(state);
    catalogue = local_catalogue(state);
    text = shared_description(state, catalogue, directory);
    return sha256_hex(text);
  });
  if (std::any_of(digests.begin(), digests.end(), [&](const std::string& digest) { return digest != digests[0]; })) {
    throw_first_difference(communicator.gather_objects(text));
  }
  const auto own = saved_pieces(catalogue, communicator.rank());
  for (const std::string& pieces : communicator.gather_objects(to_bytes<HeldPiece>(own))) {
    const auto held = from_bytes<HeldPiece>(pieces);
    catalogue.held_pieces.insert(catalogue.held_pieces.end(), held.begin(), held.end());
  }
  std::stable_sort(catalogue.held_pieces.begin(), catalogue.held_pieces.end(),
                   [](const HeldPiece& a, const HeldPiece& b) { return a.tensor < b.tensor; });
  check_pieces_cover_tensors(catalogue);
  return catalogue;
}

}  // namespace aliquot
