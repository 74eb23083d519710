#include "sharding/flight/flight_recorder.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <span>
#include <unistd.h>
#include <utility>

#include "kernels/system/file.h"
#include "kernels/system/log_message.h"

namespace aliquot {
namespace {

int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double seconds(int64_t nanoseconds) { return nanoseconds == 0 ? -1 : static_cast<double>(nanoseconds) * 1e-9; }

/// Sorts the pairs by their numbers, and returns their items.
template <typename Item>
std::vector<Item> in_order(std::vector<std::pair<uint64_t, Item>> numbered) {
  std::ranges::sort(numbered, {}, &std::pair<uint64_t, Item>::first);
  std::vector<Item> items;
  items.reserve(numbered.size());
  for (auto& [number, item] : numbered) items.push_back(std::move(item));
  return items;
}

/// The list of all recorders of the process, for write_flight_records().
struct RecorderRegistry {
  std::mutex mutex;
  std::vector<FlightRecorder*> recorders;
};

RecorderRegistry& recorder_registry() {
  static auto* all = new RecorderRegistry;  // never destroyed: a signal handler may run after static destructors
  return *all;
}

}  // namespace

std::string flight_file_name(int rank, std::string_view world) {
  return fmt::format("flight-{:04}{}{}.txt", rank, world.empty() ? "" : "-world-", world);
}

void write_flight_records(std::string_view why) noexcept {
  const std::lock_guard lock(recorder_registry().mutex);
  for (FlightRecorder* recorder : recorder_registry().recorders) recorder->write(why);
}

void write_provisional_flight_records(std::string_view why) noexcept {
  const std::lock_guard lock(recorder_registry().mutex);
  for (FlightRecorder* recorder : recorder_registry().recorders) recorder->write_provisional(why);
}

void discard_provisional_flight_records() noexcept {
  const std::lock_guard lock(recorder_registry().mutex);
  for (FlightRecorder* recorder : recorder_registry().recorders) recorder->discard_provisional();
}

FlightRecorder::FlightRecorder(int rank, int rank_count, std::string run, std::string directory, FlightWorld world)
    : rank_(rank),
      rank_count_(rank_count),
      run_(std::move(run)),
      directory_(std::move(directory)),
      world_(std::move(world)) {
  const std::lock_guard lock(recorder_registry().mutex);
  recorder_registry().recorders.push_back(this);
}

FlightRecorder::~FlightRecorder() {
  const std::lock_guard lock(recorder_registry().mutex);
  std::erase(recorder_registry().recorders, this);
}

int FlightRecorder::add_group(std::vector<int> members, std::string_view name) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(members));
  group_names_.emplace_back(name);
  return static_cast<int>(groups_.size()) - 1;
}

void FlightRecorder::set_mesh(const FlightMesh& mesh) {
  const std::lock_guard lock(mutex_);
  mesh_ = mesh;
}

uint64_t FlightRecorder::issue(int group, Lane lane, uint64_t sequence, const OperationDescription& what,
                               Label label) noexcept {
  const uint64_t number = issued_count_.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot& slot = this->slot(number);
  slot.number.store(0, std::memory_order_relaxed);
  slot.group.store(group, std::memory_order_relaxed);
  slot.lane.store(lane, std::memory_order_relaxed);
  slot.sequence.store(sequence, std::memory_order_relaxed);
  slot.what.store(what.packed(), std::memory_order_relaxed);
  slot.step.store(label.step, std::memory_order_relaxed);
  slot.issued.store(now_nanoseconds(), std::memory_order_relaxed);
  slot.begun.store(0, std::memory_order_relaxed);
  slot.ended.store(0, std::memory_order_relaxed);
  write_shared(slot.unit, label.what);
  slot.number.store(number, std::memory_order_release);
  return number;
}

void FlightRecorder::begin(uint64_t number) noexcept {
  if (slot(number).number.load(std::memory_order_relaxed) == number)
    slot(number).begun.store(now_nanoseconds(), std::memory_order_relaxed);
}

void FlightRecorder::end(uint64_t number) noexcept {
  if (slot(number).number.load(std::memory_order_relaxed) == number)
    slot(number).ended.store(now_nanoseconds(), std::memory_order_relaxed);
}

uint64_t FlightRecorder::begin_rendezvous(int group, uint64_t sequence, Label purpose) noexcept {
  const uint64_t number = rendezvous_count_.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot& slot = rendezvous_slots_[number % rendezvous_slots_.size()];
  slot.number.store(0, std::memory_order_relaxed);
  slot.after.store(issued_count_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  slot.group.store(group, std::memory_order_relaxed);
  slot.sequence.store(sequence, std::memory_order_relaxed);
  slot.step.store(purpose.step, std::memory_order_relaxed);
  slot.begun.store(now_nanoseconds(), std::memory_order_relaxed);
  slot.ended.store(0, std::memory_order_relaxed);
  write_shared(slot.unit, purpose.what);
  slot.number.store(number, std::memory_order_release);
  return number;
}

void FlightRecorder::end_rendezvous(uint64_t number) noexcept {
  Slot& slot = rendezvous_slots_[number % rendezvous_slots_.size()];
  if (slot.number.load(std::memory_order_relaxed) == number)
    slot.ended.store(now_nanoseconds(), std::memory_order_relaxed);
}

void FlightRecorder::begin_model_code(std::string_view verb, Label unit, int32_t micro_batch) noexcept {
  const uint64_t number = model_code_count_.load(std::memory_order_relaxed) + 1;
  // Joins the verb and the unit's name in an array on the stack, because recording must not allocate.
  std::array<char, sizeof(SharedText)> what{};
  std::size_t length = verb.copy(what.data(), what.size() - 1);
  what[length++] = ' ';
  length += unit.what.copy(what.data() + length, what.size() - length);
  ModelCodeSlot& slot = model_code_slots_[number % model_code_slots_.size()];
  slot.number.store(0, std::memory_order_relaxed);
  slot.micro_batch.store(micro_batch, std::memory_order_relaxed);
  slot.step.store(unit.step, std::memory_order_relaxed);
  slot.begun.store(now_nanoseconds(), std::memory_order_relaxed);
  slot.ended.store(0, std::memory_order_relaxed);
  write_shared(slot.what, {what.data(), length});
  slot.number.store(number, std::memory_order_release);
  model_code_count_.store(number, std::memory_order_relaxed);
}

void FlightRecorder::end_model_code() noexcept {
  const uint64_t number = model_code_count_.load(std::memory_order_relaxed);
  model_code_slots_[number % model_code_slots_.size()].ended.store(now_nanoseconds(), std::memory_order_relaxed);
}

std::vector<FlightModelCode> FlightRecorder::recorded_model_code() const {
  std::vector<std::pair<uint64_t, FlightModelCode>> numbered;
  for (const ModelCodeSlot& slot : model_code_slots_) {
    const uint64_t number = slot.number.load(std::memory_order_acquire);
    if (number == 0) continue;
    numbered.push_back({number,
                        {.what = read_shared(slot.what),
                         .micro_batch = slot.micro_batch,
                         .step = slot.step,
                         .begun = seconds(slot.begun),
                         .ended = seconds(slot.ended)}});
  }
  return in_order(std::move(numbered));
}

void FlightRecorder::set_failure_location(std::string_view place) {
  const std::lock_guard lock(mutex_);
  if (place_.empty()) place_ = place;
}

/// Returns the recorded rendezvous, in order.
std::vector<FlightEntry> FlightRecorder::recorded_rendezvous() const {
  std::vector<std::pair<uint64_t, FlightEntry>> numbered;
  for (const Slot& slot : rendezvous_slots_) {
    const uint64_t number = slot.number.load(std::memory_order_acquire);
    if (number == 0) continue;
    const double begun = seconds(slot.begun);
    numbered.push_back({number,
                        {.number = slot.after,
                         .group = slot.group,
                         .sequence = slot.sequence,
                         .unit = read_shared(slot.unit),
                         .step = slot.step,
                         .issued = begun,
                         .begun = begun,
                         .ended = seconds(slot.ended),
                         .is_rendezvous = true}});
  }
  return in_order(std::move(numbered));
}

FlightRecord FlightRecorder::record(std::string_view why) const {
  FlightRecord record;
  record.run = run_;
  record.rank = rank_;
  record.rank_count = rank_count_;
  record.why = why;
  record.written = seconds(now_nanoseconds());
  record.written_utc = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  for (const Slot& slot : slots_) {
    const uint64_t number = slot.number.load(std::memory_order_acquire);
    if (number == 0) continue;
    record.entries.push_back({.number = number,
                              .group = slot.group,
                              .lane = slot.lane,
                              .sequence = slot.sequence,
                              .what = OperationDescription::unpack(slot.what),
                              .unit = read_shared(slot.unit),
                              .step = slot.step,
                              .issued = seconds(slot.issued),
                              .begun = seconds(slot.begun),
                              .ended = seconds(slot.ended)});
  }
  std::ranges::sort(record.entries, {}, &FlightEntry::number);
  record.rendezvous = recorded_rendezvous();
  record.model_code = recorded_model_code();
  const std::lock_guard lock(mutex_);
  record.place = place_;
  record.mesh = mesh_;
  record.group_names = group_names_;
  record.groups = groups_;  // read after the entries, to include every group to which an entry refers
  return record;
}

std::string FlightRecorder::capture_text(std::string_view why) {
  const std::lock_guard lock(capture_mutex_);
  if (captured_text_.empty()) captured_text_ = flight_text(record(why));
  return captured_text_;
}

void FlightRecorder::capture(std::string_view why) noexcept {
  if (directory_.empty()) return;
  try {
    (void)capture_text(why);
  } catch (const std::exception&) {  // out of memory: write() tries again, and logs the error
  }
}

void FlightRecorder::write(std::string_view why) noexcept {
  if (directory_.empty()) return;
  // A second caller may be about to end the process, so it waits here until the file is complete.
  const std::lock_guard lock(write_mutex_);
  if (std::exchange(written_, true)) return;
  try {
    write_file(capture_text(why));
    world_.keep();
  } catch (const std::exception& error) {
    log_message("rank {} cannot write its flight record: {}", rank_, error.what());
  }
}

void FlightRecorder::write_provisional(std::string_view why) noexcept {
  if (directory_.empty()) return;
  const std::lock_guard lock(write_mutex_);
  if (written_ || std::exchange(provisional_, true)) return;
  try {
    std::string text;
    {
      const std::lock_guard capture_lock(capture_mutex_);
      text = captured_text_;
    }
    write_file(text.empty() ? flight_text(record(why)) : text);
  } catch (const std::exception& error) {
    log_message("rank {} cannot write its flight record: {}", rank_, error.what());
  }
}

void FlightRecorder::discard_provisional() noexcept {
  const std::lock_guard lock(write_mutex_);
  if (written_ || !std::exchange(provisional_, false)) return;
  try {
    Directory::open(FileSystem::system(), directory_).remove(flight_file_name(rank_, world_.name()));
  } catch (const std::exception& error) {
    log_message("rank {} cannot remove its flight record: {}", rank_, error.what());
  }
}

void FlightRecorder::write_file(const std::string& text) const {
  const std::string name = flight_file_name(rank_, world_.name()), temporary_prefix = fmt::format(".tmp-{}-", name);
  const std::string temporary_name = fmt::format("{}{}", temporary_prefix, ::getpid());
  const Directory directory = Directory::open(FileSystem::system(), directory_);
  for (const std::string& old : directory.names()) {
    if (old.starts_with(temporary_prefix)) directory.remove(old);  // left by a process that was killed while writing
  }
  try {
    File file = directory.create(temporary_name);
    file.write(std::as_bytes(std::span(text)), 0);
    file.close();
    directory.remove(name);  // a previous run may have left this file
    directory.rename(temporary_name, name);
  } catch (...) {
    directory.remove(temporary_name);  // an incomplete file is useless, and the disk may be full
    throw;
  }
}

}  // namespace aliquot
