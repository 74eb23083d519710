#pragma once
// What the system says a process holds.

#include <cstdint>

namespace aliquot {

/// This process's share of the pages it has in memory (Pss), so that shared pages count once over all processes; 0 where
/// the system does not tell. Walks the page tables: not for every step.
int64_t process_share_bytes();

}  // namespace aliquot
