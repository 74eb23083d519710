#include "sharding/mpi/lane_mpi.h"

#include <chrono>
#include <fmt/format.h>

#include "kernels/device/gate.h"

namespace aliquot {

MpiLane::MpiLane(Parts parts, const NodePlan& plan)
    : parts_(std::move(parts)),
      plan_(plan),
      comm_(MpiComm::duplicate(parts_.world)),
      heard_(plan.served.size()),
      heard_before_(plan.served.size()) {}

void MpiLane::agree(const Collective& collective) {
  own_ = {.sequence = collective.sequence,
          .packed = collective.what.packed(),
          .mark = collective.what.mark,
          .step = collective.label.step};
  collective.label.what.copy(own_.what.data(), own_.what.size());
  heard_before_ = heard_;
  for (std::size_t i = 0; i < plan_.served.size(); ++i) {
    headers_.receive({comm_.get(), plan_.served[i], kHeaderTag}, &heard_[i], sizeof(Header));
  }
  for (const int proxy : plan_.proxies) headers_.send({comm_.get(), proxy, kHeaderTag}, &own_, sizeof(Header));
  poll(headers_, collective, [this] { return missing(headers_.waiting_for()); });
  compare(collective);
}

void MpiLane::finish(MpiRequests& messages, const Collective& collective) {
  poll(messages, collective, [&messages, this] {
    std::string text;
    for (const int rank : messages.waiting_for())
      text += fmt::format("; the bytes of rank {} never came", name_of(rank));
    return text.empty() ? "; its own bytes were never taken" : text;
  });
}

bool MpiLane::done(MpiRequests& messages) const {
  try {
    return messages.done();
  } catch (const FaultError& error) {
    fail(fmt::format("rank {}: {}", name_of(plan_.rank), error.what()));
  }
}

template <typename Describe>
void MpiLane::poll(MpiRequests& messages, const Collective& collective, Describe describe) {
  const auto started = std::chrono::steady_clock::now();
  for (MpiBackoff backoff; !done(messages); backoff.pause()) {
    if (!backoff.look_around()) continue;
    if (work_cancelled()) {
      mark_mpi_failed();  // these messages are given up
      throw WorkCancelled{};
    }
    parts_.aborts->throw_if_posted();
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - started;
    if (waited.count() < parts_.timeout_seconds) continue;
    fail(fmt::format("rank {} waited {:g} s in {} #{}{}{}", name_of(plan_.rank), parts_.timeout_seconds,
                     collective.what.text(), collective.sequence,
                     label_text(collective.label.what, collective.label.step), describe()));
  }
}

std::string MpiLane::missing(const std::vector<int>& ranks) const {
  std::string text;
  for (const int rank : ranks) {
    std::string last = "none";
    for (std::size_t i = 0; i < plan_.served.size(); ++i) {
      const Header& before = heard_before_[i];
      if (plan_.served[i] != rank || before.sequence == 0) continue;
      last = fmt::format("{} #{}", OperationDescription::unpack(before.packed).text(), before.sequence);
    }
    text += fmt::format("; rank {} never arrived, its last operation on this lane was {}", name_of(rank), last);
  }
  return text;
}

void MpiLane::compare(const Collective& collective) const {
  for (std::size_t i = 0; i < heard_.size(); ++i) {
    const Header& theirs = heard_[i];
    if (theirs.sequence == own_.sequence && theirs.packed == own_.packed && theirs.mark == own_.mark) continue;
    const std::string_view label(theirs.what.data(), theirs.what.size());
    fail(disagreement(collective.lane, collective.sequence,
                      {name_of(plan_.rank), collective.what, label_text(collective.label.what, collective.label.step)},
                      {name_of(plan_.served[i]), OperationDescription::unpack(theirs.packed),
                       label_text(label.substr(0, label.find('\0')), theirs.step)}));
  }
}

void MpiLane::fail(const std::string& why) const {
  parts_.abort(why);
  throw CommunicationError(why);
}

}  // namespace aliquot
