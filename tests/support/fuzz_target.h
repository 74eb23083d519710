#pragma once
// Fuzz targets. Each is a function that passes arbitrary bytes to a parser of untrusted input.

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace aliquot::test {

/// `run` must return without an exception for every input. It aborts if accepted input violates a guarantee of the
/// parser. `seeds` returns initial inputs. `words` are strings that mutations insert.
struct FuzzTarget {
  std::string_view name;
  void (*run)(std::string_view input);
  std::vector<std::string> (*seeds)();
  std::vector<std::string_view> words;
};

/// Checks a guarantee of a parser. The fuzzer reports the abort as a finding.
inline void require(bool holds, const char* guarantee) {
  if (holds) return;
  std::fprintf(stderr, "parser guarantee violated: %s\n", guarantee);
  std::abort();
}

/// The targets of the module under test: manifest, checkpoint, safetensors and weight_index in tests/checkpoint/, and
/// deepspeed and flight in tests/apps/.
std::span<const FuzzTarget> fuzz_targets();

}  // namespace aliquot::test
