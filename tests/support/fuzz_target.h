#pragma once
// Fuzz targets: the parsers of untrusted input, each behind one function that accepts any bytes.

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace aliquot::test {

/// `run` must return for every input without an exception. It aborts if accepted input breaks a guarantee of the
/// parser. `seeds` are initial inputs. `words` are strings that mutation inserts.
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

/// The targets of the module under test. tests/checkpoint/ has manifest, checkpoint, safetensors and weight_index.
/// tests/apps/ has deepspeed and flight.
std::span<const FuzzTarget> fuzz_targets();

}  // namespace aliquot::test
