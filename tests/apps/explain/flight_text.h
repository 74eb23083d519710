#pragma once
// Functions for tests that change the text of a flight record.

#include <gtest/gtest.h>
#include <string>
#include <string_view>

#include "kernels/system/error.h"
#include "sharding/flight/flight_file.h"

namespace aliquot::test {

/// Returns `text` with the first occurrence of `old` replaced by `other`.
inline std::string with(std::string text, std::string_view old, std::string_view other) {
  const std::size_t at = text.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  return text.replace(at, old.size(), other);
}

/// Returns the error message of parse_flight(), or "accepted".
inline std::string refusal_of(const std::string& text) {
  try {
    parse_flight(text, "it");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace aliquot::test
