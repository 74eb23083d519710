#pragma once
// A run as the page shows it.

#include <string>
#include <string_view>

#include "apps/metrics/run_record.h"

namespace aliquot {

struct ReportRun {
  std::string name;  // the file's, without what all share
  RunRecord record;
  std::string_view colour, dashes;
};

}  // namespace aliquot
