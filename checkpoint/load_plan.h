#pragma once
// Matches the tensors of a state with those of a checkpoint.

#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file/catalogue.h"
#include "checkpoint/load.h"
#include "checkpoint/quantized_conversion.h"
#include "checkpoint/single_pass_loader.h"
#include "sharding/state.h"

namespace aliquot {

/// Takes the place of `target` during a load from a checkpoint in which the tensor has dtype `from`. Elements written
/// to tensor() are converted and written to the pieces of `target`. The target must outlive this object, which cannot
/// be moved. Requires is_convertible(target.dtype, from).
class ConvertingTensor final : public PieceAccess {
 public:
  ConvertingTensor(const StateTensor& target, DType from);

  const StateTensor& tensor() const { return tensor_; }

  void read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const override;  // always throws
  void write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const override;

 private:
  const StateTensor& target_;
  StateTensor tensor_;
};

/// Describes how each tensor of the state is filled. Has pointers into the state, the manifest and itself, so it must
/// not be moved.
struct LoadPlan {
  std::vector<TensorMatch> matches;                        // tensors to read or to set to zero
  std::vector<QuantizedConversion> quantized_conversions;  // performed after the file is verified
  /// Paths of the tensors that only the state has (`missing`) or only the checkpoint has (`extra`).
  std::vector<std::string> missing, extra;
  /// Texts for messages: the path of a tensor, and its types in the checkpoint and in the state. `different` lists the
  /// tensors that cannot be loaded because shape or dtype differ, `converted` those that a load converts.
  std::vector<std::string> different, converted;
  std::deque<ConvertingTensor> converting;
};

/// Fills `result`, which is empty. A tensor of another dtype is converted if that is exact or `options.allow_rounding`
/// is set.
void plan_load(const Catalogue& wanted, const Manifest& manifest, const LoadOptions& options, LoadPlan& result);

/// Part of the message of throw_on_differences() if all differences are due to another LoadOptions::replaced.
inline constexpr std::string_view kSavedWithAnother = " was saved with another ";

/// Throws UsageError for differences that `options` does not allow. The message names some tensors of each kind.
void throw_on_differences(const LoadPlan& found, const Manifest& manifest, const std::filesystem::path& path,
                          const LoadOptions& options);

}  // namespace aliquot
