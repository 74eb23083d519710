#pragma once
// What a state wants against what a checkpoint has.

#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/file/catalogue.h"
#include "checkpoint/load.h"
#include "checkpoint/one_pass.h"
#include "checkpoint/recoding.h"
#include "sharding/state.h"

namespace aliquot {

/// Stands in for `target` while it is loaded from a file that has it as `from`: elements written to tensor() are converted
/// and handed on to the target's pieces. The target outlives it; it stays where it is. converts(target.dtype, from) holds.
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
struct Comparison {
  std::vector<Match> matches;                                     // read, or set to zero
  std::vector<Recoding> recodings;                                // made from other forms, once the file is verified
  std::vector<std::string> missing, extra, different, converted;  // by path, the latter two as sentences
  std::deque<ConvertingTensor> converting;
};

/// Fills `result`, which is empty. A tensor of another dtype is converted where that is exact, or asked for.
void compare(const Catalogue& wanted, const Manifest& manifest, const LoadOptions& options, Comparison& result);

/// Throws UsageError, naming some of each kind, for what differs and was not asked to be let pass.
void refuse_differences(const Comparison& found, const Manifest& manifest, const std::filesystem::path& path,
                        const LoadOptions& options);

}  // namespace aliquot
