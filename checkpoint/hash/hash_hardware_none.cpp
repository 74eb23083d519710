#include "checkpoint/hash/hash_hardware.h"

namespace aliquot {

Crc32cUpdate crc32c_hardware() { return nullptr; }
Sha256Update sha256_hardware() { return nullptr; }

}  // namespace aliquot
