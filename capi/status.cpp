#include "capi/status.h"

#include <exception>
#include <fmt/format.h>
#include <new>

#include "engine/options/option_names.h"
#include "engine/run/memory/guard_range.h"
#include "kernels/system/log.h"

namespace aliquot::capi {
namespace {

/// Reserves memory before any error, so that the message of an allocation failure can be stored.
struct LastError {
  LastError() { text.reserve(1024); }
  std::string text;
  int status = ALIQUOT_DONE;
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

int store_error(int status, const char* text) noexcept {
  try {
    last_error().text =
        with_option_names(text, [](std::string_view option) { return fmt::format("option {}", option); });
  } catch (...) {
    last_error().text.clear();
  }
  return last_error().status = status;
}

}  // namespace

int store_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return store_error(static_cast<int>(error.exit_code()), error.what());
  } catch (const std::bad_alloc&) {
    return store_error(ALIQUOT_UNAVAILABLE, "out of memory: the system refused an allocation");
  } catch (const std::exception& error) {
    return store_error(ALIQUOT_FAULT, error.what());
  } catch (...) {
    return store_error(ALIQUOT_FAULT, "an exception was thrown that is not a std::exception");
  }
}

const std::string& last_message() { return last_error().text; }

void check_callback_status(int status, const std::string& callback_name) {
  if (status == ALIQUOT_DONE) return;
  const bool from_library = status == last_error().status && !last_error().text.empty();
  throw Error(static_cast<ExitCode>(status),
              from_library ? last_error().text : fmt::format("{} returned {}", callback_name, status));
}

}  // namespace aliquot::capi

const char* aliquot_message(void) { return aliquot::capi::last_message().c_str(); }

const char* aliquot_version(void) { return ALIQUOT_VERSION_TEXT; }

int aliquot_log_to_standard_error(void) {
  return aliquot::capi::catch_as_status([] { aliquot::set_log_sink(aliquot::log_to_standard_error); });
}

int aliquot_install_fault_names(void) { return aliquot::capi::catch_as_status(aliquot::install_fault_names); }
