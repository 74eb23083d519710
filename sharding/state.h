#pragma once
// What a checkpoint holds, as one rank sees it: tensors in pieces, and named scalars.

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

inline constexpr int kShapeRankLimit = 32;  // HDF5's own
inline constexpr std::string_view kScaleSuffix = "_scale";

/// The product of the shape; nothing for a negative extent, more than kShapeRankLimit of them, or when an extent or the
/// product of those that are not zero passes 2^58.
std::optional<int64_t> checked_element_count(std::span<const int64_t> shape);

/// `count` elements of a tensor, from its element `offset`, lying at `bytes` in the tensor's dtype (or wherever the
/// tensor's PieceAccess finds them). Memory is the caller's and outlives the call it is handed to.
struct StatePiece {
  int64_t offset = 0;
  int64_t count = 0;
  std::byte* bytes = nullptr;
  /// Another rank (a replica, a rank at stage 0) holds these elements too and saves them: filled by a load, skipped by
  /// a save. Over all ranks the pieces that are no copies tile the tensor exactly once.
  bool copy = false;
};

/// Reaches pieces that do not lie in host memory in their tensor's dtype: device memory, a split master, packed state.
/// Called from the thread that called save() or load(), with at most kStagingChunkBytes at a time.
class PieceAccess {
 public:
  PieceAccess() = default;
  PieceAccess(const PieceAccess&) = delete;
  PieceAccess& operator=(const PieceAccess&) = delete;
  virtual ~PieceAccess() = default;

  /// Leaves elements [first, first + count) of the piece at `to`, in host memory, in the tensor's dtype.
  virtual void read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const = 0;
  /// The other way round.
  virtual void write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const = 0;
};

/// The most bytes a PieceAccess moves at once.
inline constexpr int64_t kStagingChunkBytes = int64_t{4} << 20;

class BlockCode;

/// One tensor, whole in the file, in pieces here. Every rank lists every tensor, with no pieces where it holds none;
/// the order may differ from rank to rank.
struct StateTensor {
  std::string path;  // "parameters/h.0.attn.c_attn.weight", "optimizer/h.0.attn.c_attn.weight/exp_avg"
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  std::vector<StatePiece> pieces;
  const PieceAccess* access = nullptr;  // null: plain host memory
  /// Floats that a checkpoint may hold as eight-bit codes, or codes that it may hold as floats: a load goes from one to the
  /// other. The codes have the tensor's own path, their scales, one a block, that path with kScaleSuffix. Null: neither.
  const BlockCode* code = nullptr;

  /// The product of the shape, 1 for a scalar. Throws UsageError, naming the tensor, for a negative extent or a product
  /// that passes 2^58.
  int64_t element_count() const;
  int64_t size_bytes() const { return element_count() * element_bytes(dtype); }
};

/// A named value beside the tensors. Small: names and values together stay below kScalarBytesLimit.
using Scalar = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;
inline constexpr int64_t kScalarBytesLimit = 32 << 10;

/// Everything a run needs to go on as if it had never stopped. `step` names the checkpoint; `scalars` are the seed, the
/// schedule, the loader's position, the loss scale and whatever the caller adds, the same on every rank. They become
/// attributes on the file's root under their own names ("step" and "format_version" are taken).
struct State {
  int64_t step = 0;
  std::vector<StateTensor> tensors;
  std::map<std::string, Scalar> scalars;
};

}  // namespace aliquot
#pragma GCC visibility pop
