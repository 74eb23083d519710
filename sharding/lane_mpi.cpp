#include "sharding/lane_mpi.h"

#include <chrono>
#include <fmt/format.h>

#include "kernels/gate.h"

namespace aliquot {

MpiLane::MpiLane(Parts parts, const NodePlan& plan)
    : parts_(std::move(parts)),
      plan_(plan),
      comm_(MpiComm::duplicate(parts_.world)),
      heard_(plan.served.size()),
      heard_before_(plan.served.size()) {}

void MpiLane::agree(const Collective& collective) {
  own_ = {collective.sequence, collective.what.packed()};
  heard_before_ = heard_;
  for (std::size_t i = 0; i < plan_.served.size(); ++i) {
    headers_.receive({comm_.get(), plan_.served[i], kHeaderTag}, &heard_[i], sizeof(Header));
  }
  for (const int proxy : plan_.proxies) headers_.send({comm_.get(), proxy, kHeaderTag}, &own_, sizeof(Header));
  poll(headers_, collective, [this] { return missing(headers_.waiting_for()); });
  compare(collective);
}

void MpiLane::finish(MpiRequests& messages, const Collective& collective) {
  poll(messages, collective, [&messages] {
    std::string text;
    for (const int rank : messages.waiting_for()) text += fmt::format("; the bytes of rank {} never came", rank);
    return text.empty() ? "; its own bytes were never taken" : text;
  });
}

bool MpiLane::done(MpiRequests& messages) const {
  try {
    return messages.done();
  } catch (const FaultError& error) {
    fail(fmt::format("rank {}: {}", plan_.rank, error.what()));
  }
}

template <typename Describe>
void MpiLane::poll(MpiRequests& messages, const Collective& collective, Describe describe) {
  const auto started = std::chrono::steady_clock::now();
  for (MpiBackoff backoff; !done(messages); backoff.pause()) {
    if (!backoff.look_around()) continue;
    if (work_cancelled()) throw WorkCancelled{};
    parts_.aborts->throw_if_posted();
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - started;
    if (waited.count() < parts_.timeout_seconds) continue;
    fail(fmt::format("rank {} waited {:g} s in {} #{}{}{}", plan_.rank, parts_.timeout_seconds, collective.what.text(),
                     collective.sequence, label_text(collective.label.what, collective.label.step), describe()));
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
    text += fmt::format("; rank {} never arrived, its last operation on this lane was {}", rank, last);
  }
  return text;
}

void MpiLane::compare(const Collective& collective) const {
  for (std::size_t i = 0; i < heard_.size(); ++i) {
    if (heard_[i].sequence == own_.sequence && heard_[i].packed == own_.packed) continue;
    fail(fmt::format(
        "ranks disagree at collective #{} of the {} lane: rank {} is in {}{}, rank {} in {}; no byte was used",
        collective.sequence, name(collective.lane), plan_.rank, collective.what.text(),
        label_text(collective.label.what, collective.label.step), plan_.served[i],
        OperationDescription::unpack(heard_[i].packed).text()));
  }
}

void MpiLane::fail(const std::string& why) const {
  parts_.abort(why);
  throw CommunicationError(why);
}

}  // namespace aliquot
