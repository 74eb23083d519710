#include "sharding/flight/recording_communicator.h"

#include <array>
#include <string>
#include <vector>

#include "sharding/comm/collective_purpose.h"
#include "sharding/comm/operation_description.h"

namespace aliquot {
namespace {

constexpr std::string_view kAllocate = "allocate memory";

class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator(std::unique_ptr<Communicator> ranks, std::shared_ptr<FlightRecorder> recorder, bool timed,
                        std::string_view name)
      : recorder_(std::move(recorder)),
        ranks_(std::move(ranks)),
        timed_(timed),
        group_(recorder_->add_group(members(), name)) {}

  int rank() const override { return ranks_->rank(); }
  int rank_count() const override { return ranks_->rank_count(); }
  const Topology& topology() const override { return ranks_->topology(); }
  std::string describe() const override { return ranks_->describe(); }
  SymmetricBuffer allocate(int64_t own_bytes, RankSizes sizes, Category category, std::string_view owner) override {
    const ScopedCollectivePurpose purpose(collective_purpose_or(kAllocate));
    return ranks_->allocate(own_bytes, sizes, category, owner);
  }
  SymmetricBuffer attach(const SymmetricBuffer& whole, std::span<const int> ranks) override {
    const ScopedCollectivePurpose purpose(collective_purpose_or("attach memory to a group"));
    return ranks_->attach(whole, ranks);
  }
  std::optional<SharedRange> allocate_shared(int64_t size_bytes, int64_t own_bytes, Category category,
                                             std::string_view owner) override {
    const ScopedCollectivePurpose purpose(collective_purpose_or(kAllocate));
    return ranks_->allocate_shared(size_bytes, own_bytes, category, owner);
  }

  void all_gather(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) override {
    record_collective(stream, describe_all_gather(to, from, part_bytes, label), label,
                      [&] { ranks_->all_gather(stream, to, from, part_bytes, label); });
  }
  void all_gather_in_place(Stream& stream, SymmetricRange whole, int64_t part_bytes, Label label) override {
    record_collective(stream, describe_all_gather_in_place(whole, part_bytes, label), label,
                      [&] { ranks_->all_gather_in_place(stream, whole, part_bytes, label); });
  }
  void reduce_scatter(Stream& stream, const ReduceScatter& what, Label label) override {
    record_collective(stream, describe_reduce_scatter(what, label), label,
                      [&] { ranks_->reduce_scatter(stream, what, label); });
  }
  void all_to_all(Stream& stream, SymmetricRange to, SymmetricRange from, int64_t part_bytes, Label label) override {
    record_collective(stream, describe_all_to_all(to, from, part_bytes, label), label,
                      [&] { ranks_->all_to_all(stream, to, from, part_bytes, label); });
  }
  void transfer(Stream& stream, const Transfers& what, Label label) override {
    record_collective(stream, describe_transfer(what, label), label, [&] { ranks_->transfer(stream, what, label); });
  }
  void broadcast(Stream& stream, SymmetricRange range, int64_t size_bytes, int root, Label label) override {
    record_collective(stream, describe_broadcast(range, size_bytes, root, label), label,
                      [&] { ranks_->broadcast(stream, range, size_bytes, root, label); });
  }
  void all_reduce(Stream& stream, std::span<double> values, Reduction reduction, Label label) override {
    record_collective(stream, describe_all_reduce(static_cast<int64_t>(values.size()), reduction, label), label,
                      [&] { ranks_->all_reduce(stream, values, reduction, label); });
  }
  void barrier(Stream& stream, Label label) override {
    record_collective(stream, describe_barrier(label), label, [&] { ranks_->barrier(stream, label); });
  }

  void publish(Stream& stream, uint64_t progress) override { ranks_->publish(stream, progress); }
  void await(Stream& stream, Lane lane, uint64_t progress, Label label) override {
    ranks_->await(stream, lane, progress, label);
  }
  std::vector<std::string> gather_objects(std::string_view own) override {
    const uint64_t number = recorder_->begin_rendezvous(group_, ++rendezvous_count_, collective_purpose());
    std::vector<std::string> all = ranks_->gather_objects(own);
    recorder_->end_rendezvous(number);
    return all;
  }
  bool can_capture() const override { return ranks_->can_capture(); }
  void begin_graph(Stream& stream, Label label) override {
    const uint64_t sequence = ++issued_counts_[static_cast<std::size_t>(stream.lane())];
    recorder_->issue(group_, stream.lane(), sequence, describe_graph(label), label);
    ranks_->begin_graph(stream, label);
  }
  void end_graph(Stream& stream) override { ranks_->end_graph(stream); }
  void separate_lane(Lane lane) override {
    const ScopedCollectivePurpose purpose(collective_purpose_or("separate a lane"));
    ranks_->separate_lane(lane);
  }
  std::unique_ptr<Communicator> split(int color, int key, std::string_view name) override {
    const ScopedCollectivePurpose purpose(collective_purpose_or("split a group"));
    return record_collectives(ranks_->split(color, key, name), recorder_, timed_, name);
  }
  void abort(std::string_view why) noexcept override { ranks_->abort(why); }

 private:
  std::vector<int> members() const {
    std::vector<int> members;
    for (const std::string& rank : ranks_->gather_objects(std::to_string(recorder_->rank())))
      members.push_back(std::stoi(rank));
    return members;
  }

  template <typename Collective>
  void record_collective(Stream& stream, const OperationDescription& what, Label label, Collective collective) {
    const uint64_t sequence = ++issued_counts_[static_cast<std::size_t>(stream.lane())];
    const uint64_t number = recorder_->issue(group_, stream.lane(), sequence, what, label);
    FlightRecorder* recorder = recorder_.get();  // outlives the streams, because the World owns it
    if (timed_) stream.run([recorder, number] { recorder->begin(number); });
    collective();
    if (timed_) stream.run([recorder, number] { recorder->end(number); });
  }

  std::shared_ptr<FlightRecorder> recorder_;
  std::unique_ptr<Communicator> ranks_;
  bool timed_;
  int group_;
  std::array<uint64_t, kLaneCount> issued_counts_{};
  uint64_t rendezvous_count_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> record_collectives(std::unique_ptr<Communicator> ranks,
                                                 std::shared_ptr<FlightRecorder> recorder, bool timed,
                                                 std::string_view name) {
  return std::make_unique<RecordingCommunicator>(std::move(ranks), std::move(recorder), timed, name);
}

}  // namespace aliquot
