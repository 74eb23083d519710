#include "capi/status.h"

#include <exception>
#include <fmt/format.h>
#include <new>

#include "engine/run/memory/guard_range.h"
#include "kernels/system/log.h"

namespace aliquot::capi {
namespace {

/// Ready before anything fails, so that telling of missing memory takes none.
struct Last {
  Last() { sentence.reserve(1024); }
  std::string sentence;
  int status = ALIQUOT_DONE;
};

Last& last() {
  thread_local Last of_thread;
  return of_thread;
}

int keep(int status, const char* sentence) noexcept {
  try {
    last().sentence = sentence;
  } catch (...) {
    last().sentence.clear();
  }
  return last().status = status;
}

}  // namespace

int caught() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return keep(static_cast<int>(error.exit_code()), error.what());
  } catch (const std::bad_alloc&) {
    return keep(ALIQUOT_UNAVAILABLE, "the system gives no more memory");
  } catch (const std::exception& error) {
    return keep(ALIQUOT_FAULT, error.what());
  } catch (...) {
    return keep(ALIQUOT_FAULT, "an exception of no known kind was thrown");
  }
}

const std::string& message() { return last().sentence; }

void require_done(int status, const std::string& who) {
  if (status == ALIQUOT_DONE) return;
  const bool ours = status == last().status && !last().sentence.empty();
  throw Error(static_cast<ExitCode>(status), ours ? last().sentence : fmt::format("{} returned {}", who, status));
}

}  // namespace aliquot::capi

const char* aliquot_message(void) { return aliquot::capi::message().c_str(); }

const char* aliquot_version(void) { return ALIQUOT_VERSION; }

int aliquot_log_to_standard_error(void) {
  return aliquot::capi::guarded([] { aliquot::set_log_sink(aliquot::log_to_standard_error); });
}

int aliquot_install_fault_names(void) { return aliquot::capi::guarded(aliquot::install_fault_names); }
