#include "sharding/comm/abort_reason.h"

#include "sharding/comm/communicator.h"

namespace aliquot {
namespace {

constexpr char kMark = '\x01';  // not in texts
constexpr std::size_t kPrefixBytes = 2;

}  // namespace

std::string abort_reason(ExitCode exit_code, std::string_view text) {
  std::string reason;
  if (exit_code != ExitCode::kFault) reason = {kMark, static_cast<char>(exit_code)};
  return reason.append(text);
}

void throw_abort(std::string_view reason) {
  if (reason.size() < kPrefixBytes || reason[0] != kMark) throw CommunicationError(std::string(reason));
  throw CommunicationError(static_cast<ExitCode>(reason[1]), std::string(reason.substr(kPrefixBytes)));
}

}  // namespace aliquot
