// Checks the group that each buffer names (PlannedBuffer::group). Does not use assign_groups(), which sets it.
#include <fmt/format.h>

#include "engine/proof/validate_parts.h"

namespace aliquot {
namespace {

bool covers_all(GroupId wide, GroupSet groups) {
  for (int g = 0; g < kGroupCount; ++g) {
    const auto group = static_cast<GroupId>(g);
    if ((groups & group_set(group)) != 0 && !covers(wide, group)) return false;
  }
  return true;
}

/// Returns a group smaller than `wide` that covers all `groups`, or `wide` if there is none.
GroupId smaller_cover(GroupId wide, GroupSet groups) {
  for (int g = 0; g < kGroupCount; ++g) {
    const auto group = static_cast<GroupId>(g);
    if (group != wide && covers(wide, group) && covers_all(group, groups)) return group;
  }
  return wide;
}

}  // namespace

void check_groups(const Proof& proof, const std::vector<GroupSet>& accessed_by) {
  const auto& buffers = proof.plan.schedule.buffers;
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    const GroupId own = buffers[b].group;
    const auto add = [&](std::string_view why) {
      proof.defects.add(DefectKind::kGroup, {},
                        fmt::format("the buffer for the {} has the group {}, but {}",
                                    proof.defects.describe(buffers[b]), name(own), why));
    };
    if (!covers_all(own, accessed_by[b])) {
      add("ranks outside of this group access the buffer");
    } else if (const GroupId smaller = smaller_cover(own, accessed_by[b]); smaller != own) {
      add(fmt::format("only ranks of the smaller group {} access the buffer", name(smaller)));
    }
  }
}

}  // namespace aliquot
