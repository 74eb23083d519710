#include <algorithm>
#include <fmt/format.h>

#include "engine/proof/validate_parts.h"

namespace aliquot {
namespace {

/// Checks that all buffers are within the memory of the space, and persistent ones do not overlap.
void check_persistent(const Proof& proof, Space space) {
  const int64_t copies = space == Space::kSharedRange ? proof.plan.topology.rank_count() : 1;
  const int64_t memory_bytes = proof.plan.schedule.bytes(space);
  std::vector<const PlannedBuffer*> buffers;
  for (const PlannedBuffer& buffer : proof.plan.schedule.buffers) {
    if (buffer.space != space) continue;
    if (buffer.offset_bytes < 0 || buffer.offset_bytes + buffer.size_bytes * copies > memory_bytes) {
      proof.defects.add(DefectKind::kPlace, {},
                        fmt::format("the {} are outside of their memory", proof.defects.describe(buffer)));
    }
    if (buffer.always && buffer.size_bytes > 0) buffers.push_back(&buffer);
  }
  std::sort(buffers.begin(), buffers.end(),
            [](const PlannedBuffer* a, const PlannedBuffer* b) { return a->offset_bytes < b->offset_bytes; });
  for (std::size_t i = 1; i < buffers.size(); ++i) {
    if (buffers[i - 1]->offset_bytes + buffers[i - 1]->size_bytes * copies <= buffers[i]->offset_bytes) continue;
    proof.defects.add(DefectKind::kPlace, {},
                      fmt::format("the {} overlap the {}", proof.defects.describe(*buffers[i]),
                                  proof.defects.describe(*buffers[i - 1])));
  }
}

/// Checks that buffers begin at page boundaries if the plan needs whole pages: for disk offload and for memory
/// protection.
void check_pages(const Proof& proof) {
  const Policy& policy = proof.plan.policy;
  const bool on_disk = policy.offload_state == Offload::kDisk || policy.offload_parameters == Offload::kDisk;
  if (!on_disk && !policy.check) return;
  for (const PlannedBuffer& buffer : proof.plan.schedule.buffers) {
    const bool anywhere = buffer.space == Space::kSharedRange && !policy.check;
    if (anywhere || buffer.offset_bytes % kPlacePageBytes == 0) continue;
    proof.defects.add(DefectKind::kPlace, {},
                      fmt::format("the {} do not begin at a page boundary", proof.defects.describe(buffer)));
  }
}

/// Checks that in the checking mode, every tensor has a red zone before it and one after it.
void check_red_zones(const Proof& proof) {
  if (!proof.plan.policy.check) return;
  for (const FlatSpec& flat : proof.plan.flats) {
    const FlatLayout& layout = flat.layout;
    int64_t end = 0;
    for (int32_t t = 0; t <= static_cast<int32_t>(layout.tensors().size()); ++t) {
      const bool last = t == static_cast<int32_t>(layout.tensors().size());
      const int64_t next = last ? layout.flat_count() : layout.tensor_offset(t);
      if (next - end < kRedZoneBlocks * kBlockElements) {
        proof.defects.add(
            DefectKind::kPlace, {},
            fmt::format("no red zone comes before {}", last ? "the end of the flat buffer" : layout.tensors()[t].name));
      }
      if (!last) end = next + layout.tensors()[t].element_count();
    }
  }
}

}  // namespace

void check_places(const Proof& proof) {
  const Schedule& schedule = proof.plan.schedule;
  check_pages(proof);
  check_red_zones(proof);
  const int node_count = proof.plan.topology.node_count();
  for (const PlannedBuffer& buffer : schedule.buffers) {
    const int64_t needed = required_bytes(proof.plan, buffer, node_count);
    if (buffer.size_bytes >= needed) continue;
    proof.defects.add(
        DefectKind::kPlace, {},
        fmt::format("the {} have {} bytes and need {}", proof.defects.describe(buffer), buffer.size_bytes, needed));
  }
  for (int space = 0; space < kSpaceCount; ++space) check_persistent(proof, static_cast<Space>(space));
}

}  // namespace aliquot
