#include <algorithm>

#include "engine/plan/schedule.h"

namespace aliquot {

Account account(const Schedule& schedule) {
  const std::size_t count = schedule.operations.size();
  std::vector<BytesByCategory> change(count + 1);
  Account account;
  for (const PlannedBuffer& buffer : schedule.buffers) {
    if (!buffer.booked) {
      account.elsewhere_bytes += buffer.size_bytes;
      continue;
    }
    change[buffer.first][static_cast<std::size_t>(buffer.category)] += buffer.size_bytes;
    change[static_cast<std::size_t>(buffer.last) + 1][static_cast<std::size_t>(buffer.category)] -= buffer.size_bytes;
  }
  BytesByCategory now{};
  for (std::size_t i = 0; i < count; ++i) {
    int64_t total = 0;
    for (std::size_t c = 0; c < now.size(); ++c) {
      now[c] += change[i][c];
      account.peak[c] = std::max(account.peak[c], now[c]);
      total += now[c];
    }
    account.at.push_back(now);
    if (total <= account.step_peak_bytes) continue;
    account.step_peak_bytes = total;
    account.peak_operation = static_cast<OperationId>(i);
  }
  int64_t& staging = account.peak[static_cast<std::size_t>(Category::kStaging)];
  staging = std::max(staging, schedule.stream_bytes);
  account.peak_bytes = std::max(account.step_peak_bytes, persistent_bytes(schedule) + schedule.stream_bytes);
  return account;
}

int64_t persistent_bytes(const Schedule& schedule) {
  int64_t bytes = 0;
  for (const PlannedBuffer& buffer : schedule.buffers) bytes += buffer.always && buffer.booked ? buffer.size_bytes : 0;
  return bytes;
}

}  // namespace aliquot
