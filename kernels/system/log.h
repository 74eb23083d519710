#pragma once
// Where the library's few sentences go that no call is left to throw.

#include <string_view>

#pragma GCC visibility push(default)
namespace aliquot {

/// Takes one sentence, without a name before it or a newline after it. Called from any thread, also while something
/// fails: it must not throw, and not call the library.
using LogSink = void (*)(std::string_view sentence) noexcept;

/// Where sentences go from now on: steps that were skipped, where a rank was when a collective failed, memory that was never
/// given back, what CUDA and NCCL say while a failed group is left. Null, as it is until this is called: nowhere; the library itself prints
/// nothing. Returns what was there before. Thread-safe.
LogSink set_log_sink(LogSink sink) noexcept;

/// A sink: "aliquot: SENTENCE" on standard error.
void log_to_standard_error(std::string_view sentence) noexcept;

}  // namespace aliquot
#pragma GCC visibility pop
