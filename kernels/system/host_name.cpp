#include "kernels/system/host_name.h"

#include <array>
#include <unistd.h>

namespace aliquot {

std::string host_name() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return host.data();
}

}  // namespace aliquot
