#include "sharding/state_pieces.h"

#include <cstring>
#include <fmt/format.h>
#include <vector>

#include "kernels/system/non_temporal_copy.h"

namespace aliquot {
namespace {

/// Reads part of one element. This is required if a range of bytes begins or ends inside an element. Returns the number
/// of bytes read. `first_byte` is a position in memory.
int64_t read_cut_element(const StateTensor& tensor, const StatePiece& piece, int64_t first_byte,
                         std::span<std::byte> to) {
  std::byte element[8];
  const int64_t width = element_bytes(tensor.dtype), within = first_byte % width;
  const int64_t part = std::min(static_cast<int64_t>(to.size()), width - within);
  tensor.access->read(piece, first_byte / width, 1, element);
  std::memcpy(to.data(), element + within, static_cast<size_t>(part));
  return part;
}

/// Reads bytes that are consecutive in memory, from byte `first_byte` of the piece's memory.
void read_memory(const StateTensor& tensor, const StatePiece& piece, int64_t first_byte, std::span<std::byte> to) {
  if (tensor.access == nullptr) {
    std::memcpy(to.data(), piece.bytes + first_byte, to.size());
    return;
  }
  const int64_t width = element_bytes(tensor.dtype);
  while (!to.empty()) {
    int64_t part = std::min<int64_t>(static_cast<int64_t>(to.size()), kStagingChunkBytes) / width * width;
    if (first_byte % width != 0 || part == 0) {
      part = read_cut_element(tensor, piece, first_byte, to);
    } else {
      tensor.access->read(piece, first_byte / width, part / width, to.data());
    }
    first_byte += part;
    to = to.subspan(static_cast<size_t>(part));
  }
}

/// Writes elements that are consecutive in memory, from element `first` of the piece's memory.
void write_memory(const StateTensor& tensor, const StatePiece& piece, int64_t first, std::span<const std::byte> from) {
  const int64_t width = element_bytes(tensor.dtype);
  if (tensor.access != nullptr) {
    tensor.access->write(piece, first, static_cast<int64_t>(from.size()) / width, from.data());
  } else if (!from.empty()) {
    non_temporal_copy(piece.bytes + first * width, from.data(), from.size());
  }
}

/// Calls visit(first, count) for each range of units of the piece that is consecutive in memory. Units are elements if
/// `width` is 1, otherwise bytes. `first` is a position in memory; `begin` counts units without gaps.
template <typename Visit>
void for_each_in_memory(const StatePiece& piece, int64_t width, int64_t begin, int64_t count, const Visit& visit) {
  if (!has_gaps_in_memory(piece)) return visit(begin, count);
  const int64_t run = piece.run * width;
  while (count > 0) {
    const int64_t within = begin % run, part = std::min(run - within, count);
    visit(begin / run * piece.memory_stride * width + within, part);
    begin += part, count -= part;
  }
}

}  // namespace

std::string piece_defect(const StatePiece& piece, int64_t element_count) {
  if (piece.offset < 0 || piece.count < 0 || piece.count > element_count || piece.offset > element_count - piece.count)
    return fmt::format("is out of range: offset {} and count {}, but the tensor has {} elements", piece.offset,
                       piece.count, element_count);
  if (piece.run == 0) return {};
  if (piece.run < 0 || piece.count % piece.run != 0)
    return fmt::format("has count {} and run {}: expected a count that is a multiple of the run", piece.count,
                       piece.run);
  const int64_t steps = std::max<int64_t>(run_count(piece) - 1, 0);
  if (steps > 0 && piece.stride < piece.run)
    return fmt::format("has run {} and stride {}: expected a stride of at least the run", piece.run, piece.stride);
  if (steps > 0 && piece.memory_stride != 0 && piece.memory_stride < piece.run)
    return fmt::format("has run {} and memory stride {}: expected 0, or a memory stride of at least the run", piece.run,
                       piece.memory_stride);
  // Divides, because a product could overflow.
  if (steps > 0 && piece.stride > (element_count - piece.offset - piece.run) / steps)
    return fmt::format(
        "is out of range: offset {} and {} runs of {} elements with stride {}, but the tensor has {} "
        "elements",
        piece.offset, steps + 1, piece.run, piece.stride, element_count);
  return {};
}

int64_t elements_before(const StatePiece& piece, int64_t at) {
  if (at <= piece.offset || piece.count == 0) return 0;
  const int64_t run = run_elements(piece), distance = at - piece.offset;
  if (run_count(piece) <= 1) return std::min(distance, piece.count);
  return std::min(piece.count, distance / piece.stride * run + std::min(distance % piece.stride, run));
}

void read_piece(const StateTensor& tensor, const StatePiece& piece, int64_t first_byte, std::span<std::byte> to) {
  for_each_in_memory(piece, element_bytes(tensor.dtype), first_byte, std::ssize(to), [&](int64_t first, int64_t count) {
    read_memory(tensor, piece, first, to.first(static_cast<size_t>(count)));
    to = to.subspan(static_cast<size_t>(count));
  });
}

void write_piece(const StateTensor& tensor, const StatePiece& piece, int64_t first, std::span<const std::byte> from) {
  const int64_t width = element_bytes(tensor.dtype);
  for_each_in_memory(piece, 1, first, std::ssize(from) / width, [&](int64_t position, int64_t count) {
    const auto bytes = static_cast<size_t>(count * width);
    write_memory(tensor, piece, position, from.first(bytes));
    from = from.subspan(bytes);
  });
}

void write_overlaps(const StateTensor& tensor, const StatePiece& piece, int64_t first,
                    std::span<const std::byte> from) {
  const int64_t width = element_bytes(tensor.dtype), last = first + std::ssize(from) / width;
  const auto bytes_of = [&](const Overlap& part) {
    return from.subspan(static_cast<size_t>((part.first - first) * width), static_cast<size_t>(part.count * width));
  };
  if (tensor.access == nullptr || run_count(piece) <= 1 || has_gaps_in_memory(piece)) {
    for_each_overlap(piece, first, last,
                     [&](const Overlap& part, int64_t index) { write_piece(tensor, piece, index, bytes_of(part)); });
    return;
  }
  // Joins the runs, so that one call writes them. A call for each run would be slow for device memory.
  std::vector<std::byte> joined;
  for_each_overlap(piece, first, last, [&](const Overlap& part, int64_t) {
    const auto bytes = bytes_of(part);
    joined.insert(joined.end(), bytes.begin(), bytes.end());
  });
  const int64_t index = elements_before(piece, first), most = kStagingChunkBytes / width;
  for (int64_t done = 0; done < std::ssize(joined) / width; done += most) {
    const int64_t count = std::min(most, std::ssize(joined) / width - done);
    write_piece(tensor, piece, index + done,
                std::span(joined).subspan(static_cast<size_t>(done * width), static_cast<size_t>(count * width)));
  }
}

void write_elements(const StateTensor& tensor, int64_t first, std::span<const std::byte> from) {
  for (const StatePiece& piece : tensor.pieces) write_overlaps(tensor, piece, first, from);
}

}  // namespace aliquot
