#include "sharding/mpi/lane_mpi.h"

#include <chrono>
#include <fmt/format.h>

#include "kernels/device/gate.h"
#include "sharding/comm/abort_reason.h"

namespace aliquot {

MpiLane::MpiLane(Options options, const NodeRoutes& routes)
    : options_(std::move(options)),
      routes_(routes),
      comm_(MpiComm::duplicate(options_.world)),
      received_headers_(routes.served_ranks.size()),
      previous_headers_(routes.served_ranks.size()) {}

void MpiLane::match_other_nodes(const Collective& collective) {
  own_header_ = {.sequence = collective.sequence,
                 .packed = collective.what.packed(),
                 .fingerprint = collective.what.fingerprint,
                 .step = collective.label.step};
  collective.label.what.copy(own_header_.what.data(), own_header_.what.size());
  previous_headers_ = received_headers_;
  for (std::size_t i = 0; i < routes_.served_ranks.size(); ++i) {
    headers_.receive({comm_.get(), routes_.served_ranks[i], kHeaderTag}, &received_headers_[i], sizeof(Header));
  }
  for (const int proxy : routes_.proxies) headers_.send({comm_.get(), proxy, kHeaderTag}, &own_header_, sizeof(Header));
  poll(headers_, collective, [this] { return missing_ranks_text(headers_.pending_sources()); });
  check_same_operation(collective);
}

void MpiLane::wait_for(MpiRequests& messages, const Collective& collective) {
  poll(messages, collective, [&messages, this] {
    std::string text;
    for (const int rank : messages.pending_sources())
      text += fmt::format("; the data of rank {} never arrived", global_rank(rank));
    return text.empty() ? "; other ranks have not received the data of this rank" : text;
  });
}

bool MpiLane::done(MpiRequests& messages) const {
  try {
    return messages.done();
  } catch (const FaultError& error) {
    fail(fmt::format("rank {}: {}", global_rank(routes_.rank), error.what()));
  }
}

template <typename Describe>
void MpiLane::poll(MpiRequests& messages, const Collective& collective, Describe describe) {
  const auto started = std::chrono::steady_clock::now();
  for (MpiBackoff backoff; !done(messages); backoff.pause()) {
    if (!backoff.slow_checks_due()) continue;
    if (work_cancelled()) {
      mark_mpi_failed();  // the stream is being destroyed, so messages in flight are abandoned
      throw WorkCancelled{};
    }
    options_.aborts->throw_if_posted();
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - started;
    if (waited.count() < options_.timeout_seconds) continue;
    fail(fmt::format("rank {} waited {:g} s in {} #{}{}{}{}", global_rank(routes_.rank), options_.timeout_seconds,
                     collective.what.text(), collective.sequence,
                     label_text(collective.label.what, collective.label.step), group_text(options_.group), describe()));
  }
}

std::string MpiLane::missing_ranks_text(const std::vector<int>& ranks) const {
  std::string text;
  for (const int rank : ranks) {
    std::string last = ", and it had no earlier operation on this lane";
    for (std::size_t i = 0; i < routes_.served_ranks.size(); ++i) {
      const Header& before = previous_headers_[i];
      if (routes_.served_ranks[i] != rank || before.sequence == 0) continue;
      last = fmt::format(", its last operation on this lane was {} #{}",
                         OperationDescription::unpack(before.packed).text(), before.sequence);
    }
    text += fmt::format("; rank {} never arrived{}", global_rank(rank), last);
  }
  return text;
}

void MpiLane::check_same_operation(const Collective& collective) const {
  for (std::size_t i = 0; i < received_headers_.size(); ++i) {
    const Header& theirs = received_headers_[i];
    if (theirs.sequence == own_header_.sequence && theirs.packed == own_header_.packed &&
        theirs.fingerprint == own_header_.fingerprint)
      continue;
    const std::string_view label(theirs.what.data(), theirs.what.size());
    fail(mismatch_text(
        {collective.lane, collective.sequence, options_.group},
        {global_rank(routes_.rank), collective.what, label_text(collective.label.what, collective.label.step)},
        {global_rank(routes_.served_ranks[i]), OperationDescription::unpack(theirs.packed),
         label_text(label.substr(0, label.find('\0')), theirs.step)}));
  }
}

void MpiLane::fail(const std::string& why) const {
  options_.abort(why);
  throw_abort(why);
}

}  // namespace aliquot
