#pragma once
// GPU memory that NCCL knows, and so moves without a copy of its own.

#include <memory>
#include <string_view>

#include "sharding/nccl/handle_nccl.h"

namespace aliquot {

/// The same number of bytes on every rank, aligned to 4096: a symmetric window where NCCL grants one, else registered
/// plainly, else plain memory. Only the own part can be loaded: peer(r) is null for the others. Collective and blocking;
/// throws UnavailableError, on all ranks, if one of them has no room.
SymmetricBuffer allocate_for_nccl(const std::shared_ptr<NcclHandle>& handle, int64_t size_bytes, Category category,
                                  std::string_view owner);

}  // namespace aliquot
