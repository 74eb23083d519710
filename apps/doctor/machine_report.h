#pragma once
// What this build and this machine offer, and what is missing: what aliquot doctor says first.

#include <string>
#include <vector>

namespace aliquot {

struct MachineReport {
  struct Line {
    std::string what, text;
  };
  std::vector<Line> lines;
  std::vector<std::string> missing;  // each with what would add it
};

/// Looks, and starts nothing but MPI, in a child. To be called before the program has threads.
MachineReport report_machine();

}  // namespace aliquot
