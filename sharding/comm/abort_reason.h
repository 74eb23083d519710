#pragma once
// The reason for which a rank ends a world, as ranks pass it to one another.

#include <string>
#include <string_view>

#include "kernels/system/error.h"

namespace aliquot {

/// Returns the reason to pass to abort(): `text`, and the exit code of the rank's error. The code comes first, because
/// long reasons are truncated. A reason without a code stands for ExitCode::kFault.
std::string abort_reason(ExitCode exit_code, std::string_view text);

/// Throws CommunicationError with the text and exit code of `reason`, which another rank may have passed to abort().
[[noreturn]] void throw_abort(std::string_view reason);

}  // namespace aliquot
