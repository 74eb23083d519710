#pragma once
// What a state wants against what a checkpoint has.

#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/catalogue.h"
#include "checkpoint/converting_tensor.h"
#include "checkpoint/load.h"
#include "checkpoint/one_pass.h"
#include "checkpoint/recoding.h"

namespace aliquot {

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
