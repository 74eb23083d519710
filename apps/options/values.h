#pragma once
// Values as people write them.

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/formats/dtype.h"
#include "sharding/world.h"

namespace aliquot {

// Each takes the whole text or throws UsageError with what was wrong and what to give, but not where: the caller knows.

struct WholeRange {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
};
/// "4096", "7.5b" (1e9), "3m" (1e6), "12k" (1e3): whole in the end.
int64_t parse_count(std::string_view text, WholeRange range);

/// "1048576", "24 GiB", "1.5MB": KiB MiB GiB TiB are powers of 1024, KB MB GB TB of 1000.
int64_t parse_bytes(std::string_view text);

struct RealRange {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
};
/// "3e-4": finite.
double parse_real(std::string_view text, RealRange range);

/// One of the names given; offers the nearest.
std::string parse_choice(std::string_view text, const std::vector<std::string>& names);

/// "1,2,4": what stands between commas, without blanks around it, each once, in order. Nothing between two is refused.
std::vector<std::string> parse_list(std::string_view text);

/// "on" or "off", and "true", "false", "yes", "no", "1", "0".
bool parse_switch(std::string_view text);

/// What options call fp32, bf16 and fp16.
DType parse_dtype(std::string_view text);

/// "auto", "host" or "cuda".
DeviceChoice parse_device(std::string_view text);

/// The shortest text that reads back to the same bits, as JSON takes it; "null" for what is not finite.
std::string exact_text(double value);
std::string exact_text(float value);

}  // namespace aliquot
