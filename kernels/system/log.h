#pragma once
// The sink for messages that the library cannot report with an exception.

#include <string_view>

#pragma GCC visibility push(default)
namespace aliquot {

/// Receives one message without prefix or newline. Called from any thread, also during failures. It must not call the
/// library.
using LogSink = void (*)(std::string_view message) noexcept;

/// Sets the sink of the process and returns the previous one. With null, the default, messages are dropped. Messages
/// report skipped steps, the operation of a rank when a collective failed, and memory that was never released. They
/// also report errors of CUDA and NCCL while a failed group is destroyed. Thread-safe.
LogSink set_log_sink(LogSink sink) noexcept;

/// A sink that prints "aliquot: MESSAGE" on standard error.
void log_to_standard_error(std::string_view message) noexcept;

}  // namespace aliquot
#pragma GCC visibility pop
