// Functions that set and get the scalars of the program.
#include <algorithm>
#include <fmt/format.h>
#include <vector>

#include "capi/handles.h"
#include "capi/status.h"
#include "engine/engine_scalars.h"
#include "sharding/state_names.h"

using aliquot::Scalar;
using aliquot::UsageError;
using aliquot::capi::catch_as_status;
using aliquot::capi::require_not_null;

namespace {

void set(aliquot_engine* engine, const char* name, Scalar value) {
  aliquot_engine& handle = require_not_null(engine, "engine");
  const std::string key = &require_not_null(name, "name");
  const bool is_reserved = key == "step" || key == "format_version";
  const std::string defect = is_reserved ? "is reserved for the checkpoint format" : aliquot::path_defect(key);
  if (!defect.empty())
    throw UsageError(fmt::format("invalid scalar \"{}\": its name {}", aliquot::printable(key), defect));
  if (aliquot::is_engine_scalar(key))
    throw UsageError(fmt::format("{} is a scalar of the engine: use another name", key));
  handle.scalars.insert_or_assign(key, std::move(value));
}

/// Sets a scalar of one value, or a list.
template <typename T>
int set_numbers(aliquot_engine* engine, const char* name, int64_t count, const T* values) {
  return catch_as_status([&] {
    const std::string_view key = &require_not_null(name, "name");
    if (count < 1) throw UsageError(fmt::format("the scalar {} has {} values: expected at least 1", key, count));
    const T* first = &require_not_null(values, "values");
    set(engine, name, count == 1 ? Scalar(*first) : Scalar(std::vector<T>(first, first + count)));
  });
}

const char* type_text(const Scalar& scalar) {
  constexpr const char* kTypes[] = {"one integer", "one real number", "text", "a list of integers",
                                    "a list of real numbers"};
  static_assert(std::size(kTypes) == std::variant_size_v<Scalar>);
  return kTypes[scalar.index()];
}

const Scalar& scalar_of(aliquot_engine* engine, const char* name) {
  const auto& scalars = require_not_null(engine, "engine").scalars;
  const std::string key = &require_not_null(name, "name");
  const auto found = scalars.find(key);
  if (found == scalars.end())
    throw UsageError(fmt::format("no scalar is named \"{}\": set it, or load a checkpoint that contains it", key));
  return found->second;
}

template <typename T>
int get_numbers(aliquot_engine* engine, const char* name, int64_t capacity, T* values, int64_t* count) {
  return catch_as_status([&] {
    const Scalar& scalar = scalar_of(engine, name);
    const T* first = std::get_if<T>(&scalar);
    int64_t length = 1;
    if (const auto* list = std::get_if<std::vector<T>>(&scalar)) {
      first = list->data();
      length = static_cast<int64_t>(list->size());
    }
    if (first == nullptr && length > 0)
      throw UsageError(fmt::format("the scalar {} is {}: expected {}", name, type_text(scalar),
                                   std::is_same_v<T, double> ? "real numbers" : "integers"));
    if (length > capacity)
      throw UsageError(
          fmt::format("the scalar {} has {} values: expected at most {}, the capacity", name, length, capacity));
    std::copy_n(first, length, &require_not_null(values, "values"));
    if (count != nullptr) *count = length;
  });
}

}  // namespace

int aliquot_set_scalar_integers(aliquot_engine* engine, const char* name, int64_t count, const int64_t* values) {
  return set_numbers(engine, name, count, values);
}

int aliquot_set_scalar_reals(aliquot_engine* engine, const char* name, int64_t count, const double* values) {
  return set_numbers(engine, name, count, values);
}

int aliquot_set_scalar_text(aliquot_engine* engine, const char* name, const char* text) {
  return catch_as_status([&] {
    const std::string value = &require_not_null(text, "text");
    const std::string key = &require_not_null(name, "name");
    if (!aliquot::is_plain_text(value))
      throw UsageError(fmt::format("invalid text of the scalar {}: expected UTF-8", aliquot::printable(key)));
    set(engine, name, value);
  });
}

int aliquot_scalar_integers(aliquot_engine* engine, const char* name, int64_t capacity, int64_t* values,
                            int64_t* count) {
  return get_numbers(engine, name, capacity, values, count);
}

int aliquot_scalar_reals(aliquot_engine* engine, const char* name, int64_t capacity, double* values, int64_t* count) {
  return get_numbers(engine, name, capacity, values, count);
}

int aliquot_scalar_text(aliquot_engine* engine, const char* name, const char** text) {
  return catch_as_status([&] {
    const Scalar& scalar = scalar_of(engine, name);
    const auto* value = std::get_if<std::string>(&scalar);
    if (value == nullptr) throw UsageError(fmt::format("the scalar {} is {}: expected text", name, type_text(scalar)));
    require_not_null(text, "text") = value->c_str();
  });
}

int aliquot_has_scalar(aliquot_engine* engine, const char* name, int* present) {
  return catch_as_status([&] {
    require_not_null(present, "present") =
        require_not_null(engine, "engine").scalars.contains(&require_not_null(name, "name")) ? 1 : 0;
  });
}
