#pragma once
// The parsers of what strangers may have written, each behind one function that takes any bytes.

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace aliquot::test {

/// `run` returns for every input, throws nothing, and ends the program where what was accepted does not hold what the
/// parser promises. `seeds` are inputs from which others are made; `words` are worth inserting.
struct FuzzTarget {
  std::string_view name;
  void (*run)(std::string_view input);
  std::vector<std::string> (*seeds)();
  std::vector<std::string_view> words;
};

/// What a target may count on; a fuzzer takes the abort for a finding.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "a parser broke its promise: %s\n", what);
  std::abort();
}

/// Those of one room's tests: tests/checkpoint/ has manifest, checkpoint, safetensors and weight_index, tests/apps/ has
/// deepspeed and flight.
std::span<const FuzzTarget> fuzz_targets();

}  // namespace aliquot::test
