// Reading parameters; checkpoints.
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
    const std::string_view name = &require_not_null(parameter, "the parameter's name");
    const std::vector<float> whole = require_not_null(engine, "the engine").engine.read(name);
    if (values == nullptr) throw aliquot::UsageError("there is no place for the values: values is NULL");
    if (count != static_cast<int64_t>(whole.size())) {
      throw aliquot::UsageError(
          fmt::format("the parameter {} has {} elements; room was given for {}", name, whole.size(), count));
    }
    std::ranges::copy(whole, values);
  });
}

int aliquot_check_copies(aliquot_engine* engine) {
  return catch_as_status([&] { require_not_null(engine, "the engine").engine.check_copies(); });
}

int aliquot_save(aliquot_engine* engine, const char* directory, int keep) {
  return catch_as_status([&] {
    aliquot::Engine& native_engine = require_not_null(engine, "the engine").engine;
    aliquot::save(native_engine.state(), native_engine.world().communicator(),
                  &require_not_null(directory, "the directory"), {.keep_count = keep});
  });
}

int aliquot_load(aliquot_engine* engine, const char* path) {
  return catch_as_status([&] {
    aliquot::Engine& native_engine = require_not_null(engine, "the engine").engine;
    aliquot::State state = native_engine.state();
    aliquot::load(state, native_engine.world().communicator(), &require_not_null(path, "the path"));
    native_engine.adopt(state);
  });
}

int aliquot_load_newest(aliquot_engine* engine, const char* directory, int* found) {
  return catch_as_status([&] {
    aliquot::Engine& native_engine = require_not_null(engine, "the engine").engine;
    aliquot::State state = native_engine.state();
    const auto report = aliquot::load_newest(state, native_engine.world().communicator(),
                                             &require_not_null(directory, "the directory"));
    if (report) native_engine.adopt(state);
    if (found != nullptr) *found = report ? 1 : 0;
  });
}

int aliquot_load_weights(aliquot_engine* engine, const char* path) {
  return catch_as_status([&] {
    aliquot::Engine& native_engine = require_not_null(engine, "the engine").engine;
    const aliquot::State state = native_engine.state();
    aliquot::load_weights(state, native_engine.world().communicator(), &require_not_null(path, "the path"));
    native_engine.adopt(state);
  });
}
