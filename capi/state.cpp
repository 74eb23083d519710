// Functions that read parameters, and that save and load checkpoints.
#include <algorithm>
#include <fmt/format.h>

#include "capi/handles.h"
#include "capi/status.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/weights/load_weights.h"

using aliquot::capi::catch_as_status;
using aliquot::capi::require_not_null;

int aliquot_read(aliquot_engine* engine, const char* parameter, int64_t count, float* values) {
  return catch_as_status([&] {
    const std::string_view name = &require_not_null(parameter, "parameter");
    const std::vector<float> elements = require_not_null(engine, "engine").engine.read(name);
    float* const first = &require_not_null(values, "values");
    if (count != static_cast<int64_t>(elements.size())) {
      throw aliquot::UsageError(
          fmt::format("count is {}: expected {}, the number of elements of {}", count, elements.size(), name));
    }
    std::ranges::copy(elements, first);
  });
}

int aliquot_check_copies(aliquot_engine* engine) {
  return catch_as_status([&] { require_not_null(engine, "engine").engine.check_copies(); });
}

int aliquot_save(aliquot_engine* engine, const char* directory, int keep) {
  return catch_as_status([&] {
    aliquot::Engine& native_engine = require_not_null(engine, "engine").engine;
    aliquot::save(native_engine.state(), native_engine.world().communicator(),
                  &require_not_null(directory, "directory"), {.keep_count = keep});
  });
}

int aliquot_load(aliquot_engine* engine, const char* path) {
  return catch_as_status([&] {
    aliquot::Engine& native_engine = require_not_null(engine, "engine").engine;
    aliquot::State state = native_engine.state();
    aliquot::load(state, native_engine.world().communicator(), &require_not_null(path, "path"));
    native_engine.adopt(state);
  });
}

int aliquot_load_newest(aliquot_engine* engine, const char* directory, int* found) {
  return catch_as_status([&] {
    aliquot::Engine& native_engine = require_not_null(engine, "engine").engine;
    aliquot::State state = native_engine.state();
    const auto report =
        aliquot::load_newest(state, native_engine.world().communicator(), &require_not_null(directory, "directory"));
    if (report) native_engine.adopt(state);
    if (found != nullptr) *found = report ? 1 : 0;
  });
}

int aliquot_load_weights(aliquot_engine* engine, const char* path) {
  return catch_as_status([&] {
    aliquot::Engine& native_engine = require_not_null(engine, "engine").engine;
    const aliquot::State state = native_engine.state();
    aliquot::load_weights(state, native_engine.world().communicator(), &require_not_null(path, "path"));
    native_engine.adopt(state);
  });
}
