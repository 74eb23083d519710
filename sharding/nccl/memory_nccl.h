#pragma once
// GPU memory that is registered with NCCL. NCCL transfers it without intermediate copies.

#include <memory>
#include <span>
#include <string_view>

#include "sharding/nccl/handle_nccl.h"

namespace aliquot {

/// The arguments of Communicator::allocate().
struct NcclMemorySizes {
  int64_t size_bytes, own_bytes;
};

/// Allocates memory aligned to 4096 bytes. Registers it with NCCL as a symmetric window if possible, which requires
/// that all ranks have the same size, otherwise as a plain buffer. If neither is possible, it is not registered.
/// peer(r) is null for all other ranks. Collective; blocks. Throws UnavailableError on all ranks if an allocation
/// fails.
SymmetricBuffer allocate_for_nccl(const std::shared_ptr<NcclHandle>& handle, const NcclMemorySizes& sizes,
                                  Category category, std::string_view owner);

/// Returns memory of allocate_for_nccl() as memory of a group of ranks, and registers it in the same way; see
/// Communicator::attach(). Collective.
SymmetricBuffer attach_to_nccl(const std::shared_ptr<NcclHandle>& handle, const SymmetricBuffer& whole,
                               std::span<const int> ranks);

}  // namespace aliquot
