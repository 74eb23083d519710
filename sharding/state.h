#pragma once
// The state that a checkpoint contains, as stored on one rank: pieces of tensors, and named scalars.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/formats/dtype.h"

#pragma GCC visibility push(default)
namespace aliquot {

inline constexpr int kShapeRankLimit = 32;  // HDF5's limit on the number of dimensions
inline constexpr std::string_view kScaleSuffix = "_scale";

/// Returns the product of the extents. Returns nullopt if an extent is negative or there are more than kShapeRankLimit
/// extents. Also returns nullopt if an extent, or the product of the nonzero extents, exceeds 2^58.
std::optional<int64_t> checked_element_count(std::span<const int64_t> shape);

/// A piece of a tensor: `count` elements, starting at element `offset`. They are stored at `bytes` in the tensor's
/// dtype, unless the tensor has a PieceAccess, which then reads and writes them. The caller owns the memory. It must
/// stay valid during calls that use the piece.
///
/// By default, the elements are consecutive. If `run` is set, they are equal runs of `run` consecutive elements. For
/// example, {.offset = 2, .count = 6, .run = 3, .stride = 8} has the elements 2, 3, 4, 10, 11 and 12.
struct StatePiece {
  int64_t offset = 0;
  int64_t count = 0;
  std::byte* bytes = nullptr;
  /// True if another rank also stores these elements and saves them. A load fills copies, and a save skips them.
  /// Without the copies, the pieces of all ranks must contain every element of the tensor exactly once.
  bool copy = false;
  int64_t run = 0;     // number of elements of a run, which divides `count`; 0: all elements are one run
  int64_t stride = 0;  // distance between the first elements of two consecutive runs in the tensor, at least `run`
  /// The same distance in memory, at least `run`. 0: the runs follow one another in memory.
  int64_t memory_stride = 0;
};

/// Reads and writes pieces that the host cannot access directly in the tensor's dtype: pieces in device memory, split
/// masters and packed state. Called on the thread that called save() or load(), for at most kStagingChunkBytes at a
/// time.
class PieceAccess {
 public:
  PieceAccess() = default;
  PieceAccess(const PieceAccess&) = delete;
  PieceAccess& operator=(const PieceAccess&) = delete;
  virtual ~PieceAccess() = default;

  /// Copies elements [first, first + count) of the piece to `to`, in host memory, in the tensor's dtype. Elements are
  /// numbered by their position in memory, from that of piece.bytes. If the piece has gaps in memory, the range is in
  /// one run.
  virtual void read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const = 0;
  /// Overwrites elements [first, first + count) of the piece with the elements at `from`. Elements are numbered as in
  /// read().
  virtual void write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const = 0;
};

/// The maximum number of bytes that one call of a PieceAccess reads or writes.
inline constexpr int64_t kStagingChunkBytes = int64_t{4} << 20;

class BlockCode;

/// One tensor of the checkpoint, and its pieces on this rank. Every rank lists every tensor, even one without pieces on
/// this rank. The order may differ between ranks.
struct StateTensor {
  std::string path;  // e.g. "parameters/h.0.attn.c_attn.weight", "optimizer/h.0.attn.c_attn.weight/exp_avg"
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  std::vector<StatePiece> pieces;
  const PieceAccess* access = nullptr;  // null: pieces are in host memory in the tensor's dtype
  /// Converts between 8-bit codes and floats during a load, if this state stores one form and the checkpoint the other.
  /// Codes are stored under `path`, and their scales, one per block, under `path` + kScaleSuffix. Null: no conversion.
  const BlockCode* code = nullptr;

  /// Returns the product of the extents; 1 for a scalar. Throws UsageError, naming the tensor, if
  /// checked_element_count() returns nullopt.
  int64_t element_count() const;
  int64_t size_bytes() const { return element_count() * element_bytes(dtype); }
};

/// A named value. All names and values of a state together must be smaller than kScalarBytesLimit.
using Scalar = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;
inline constexpr int64_t kScalarBytesLimit = 32 << 10;

/// Everything that a run needs to continue with identical results, bit for bit. `step` becomes part of the checkpoint's
/// name. `scalars` contains the seed, the learning-rate schedule, the position of the loader, the loss scale and values
/// of the caller. It must be the same on every rank. Each scalar becomes an attribute of the file's root group. The
/// names "step" and "format_version" are reserved.
struct State {
  int64_t step = 0;
  std::vector<StateTensor> tensors;
  std::map<std::string, Scalar> scalars;
};

}  // namespace aliquot
#pragma GCC visibility pop
