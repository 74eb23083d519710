#include "sharding/comm/collective_purpose.h"

#include <fmt/format.h>

#include "sharding/comm/operation_description.h"

namespace aliquot {
namespace {

thread_local Label purpose{"set up"};

}  // namespace

ScopedCollectivePurpose::ScopedCollectivePurpose(std::string_view what, int64_t step) noexcept : before_(purpose) {
  purpose = {what, step};
}

ScopedCollectivePurpose::~ScopedCollectivePurpose() { purpose = before_; }

Label collective_purpose() noexcept { return purpose; }

std::string bootstrap_wait_text(std::string_view what) {
  return fmt::format("for the other ranks to {} together", what);
}

std::string bootstrap_timeout_text(int rank, double timeout_seconds, const std::vector<int>& missing) {
  std::string text = fmt::format("rank {} waited {:g} s {}{}", rank, timeout_seconds, bootstrap_wait_text(purpose.what),
                                 label_text("", purpose.step));
  for (const int each : missing) text += fmt::format("; rank {} never arrived", each);
  return text;
}

}  // namespace aliquot
