#pragma once
// What a state wants against what a checkpoint has.

#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/file/catalogue.h"
#include "checkpoint/load.h"
#include "checkpoint/quantized_conversion.h"
#include "checkpoint/single_pass_loader.h"
#include "sharding/state.h"

namespace aliquot {

/// Stands in for `target` while it is loaded from a file that has it as `from`: elements written to tensor() are converted
/// and handed on to the target's pieces. The target outlives it; it stays where it is. is_convertible(target.dtype, from) holds.
class ConvertingTensor final : public PieceAccess {
 public:
  ConvertingTensor(const StateTensor& target, DType from);

  const StateTensor& tensor() const { return tensor_; }

  void read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const override;  // refused
  void write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const override;

 private:
  const StateTensor& target_;
  StateTensor tensor_;
};

/// How each tensor of the state is filled. Points into what was compared, and into itself: it stays where it is.
struct LoadPlan {
  std::vector<TensorMatch> matches;                               // read, or set to zero
  std::vector<QuantizedConversion> quantized_conversions;         // made from other forms, once the file is verified
  std::vector<std::string> missing, extra, different, converted;  // by path, the latter two as sentences
  std::deque<ConvertingTensor> converting;
};

/// Fills `result`, which is empty. A tensor of another dtype is converted where that is exact, or asked for.
void plan_load(const Catalogue& wanted, const Manifest& manifest, const LoadOptions& options, LoadPlan& result);

/// Throws UsageError, naming some of each kind, for what differs and was not asked to be let pass.
void throw_on_differences(const LoadPlan& found, const Manifest& manifest, const std::filesystem::path& path,
                          const LoadOptions& options);

}  // namespace aliquot
