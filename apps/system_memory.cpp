#include "apps/system_memory.h"

#include <fstream>
#include <string>

namespace aliquot {

int64_t process_share_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    if (word != "Pss:") continue;
    int64_t kibibytes = 0;
    file >> kibibytes;
    return kibibytes * 1024;
  }
  return 0;
}

}  // namespace aliquot
