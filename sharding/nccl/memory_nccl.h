#pragma once
// GPU memory that is registered with NCCL. NCCL transfers it without intermediate copies.

#include <memory>
#include <span>
#include <string_view>

#include "sharding/nccl/handle_nccl.h"

namespace aliquot {

/// The NCCL communicators of one group of ranks. There is at least one.
using NcclHandles = std::span<const std::shared_ptr<NcclHandle>>;

/// Implements Communicator::allocate(). Aligns the memory to 4096 bytes, and registers it with each communicator of
/// the group:
/// - as a symmetric window if the sizes of all ranks are equal and NCCL has windows,
/// - otherwise as a plain buffer.
/// If NCCL cannot register the memory of one rank, no rank registers its memory. peer(r) is null for all other ranks.
SymmetricBuffer allocate_for_nccl(NcclHandles group, int64_t own_bytes, RankSizes sizes, Category category,
                                  std::string_view owner);

/// Implements Communicator::attach() for memory of allocate_for_nccl(). Registers the memory with each communicator of
/// the group:
/// - as a symmetric window if the sizes of all ranks of the group are equal and NCCL has windows,
/// - otherwise as a plain buffer.
/// If NCCL cannot register the memory of one rank of the group, no rank of the group registers its memory.
SymmetricBuffer attach_to_nccl(NcclHandles group, const SymmetricBuffer& whole, std::span<const int> ranks);

}  // namespace aliquot
