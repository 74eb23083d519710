#include "kernels/system/log.h"

#include <atomic>
#include <cstdio>

#include "kernels/system/log_message.h"

namespace aliquot {
namespace {

std::atomic<LogSink> current_sink{nullptr};

}  // namespace

LogSink set_log_sink(LogSink sink) noexcept { return current_sink.exchange(sink); }

void log_to_standard_error(std::string_view message) noexcept {
  std::fprintf(stderr, "aliquot: %.*s\n", static_cast<int>(message.size()), message.data());
}

void log_message(std::string_view message) noexcept {
  if (const LogSink sink = current_sink.load(); sink != nullptr) sink(message);
}

}  // namespace aliquot
