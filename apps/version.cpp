#include "apps/version.h"

namespace aliquot {

std::string_view version() { return ALIQUOT_VERSION; }

}  // namespace aliquot
