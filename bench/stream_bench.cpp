// The overhead of a host stream: latency from enqueue to start, and events between two streams.
#include <benchmark/benchmark.h>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "bench/paired.h"
#include "kernels/device/device.h"
#include "kernels/device/host_queue.h"

namespace aliquot {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Runs one operation at a time. A long `pause` lets the worker fall asleep before each operation.
void enqueue_to_start(benchmark::State& state, std::chrono::microseconds pause) {
  const auto device = make_host_device(1);
  const auto gather = device->make_stream(Lane::kGather);
  std::vector<double> waits;
  for (auto _ : state) {
    std::this_thread::sleep_for(pause);
    double seconds = 0;
    const auto start = Clock::now();
    as_host_stream(*gather).run([start, &seconds] { seconds = seconds_since(start); });
    gather->synchronize();
    state.SetIterationTime(seconds);
    waits.push_back(seconds);
  }
  state.counters["median_microseconds"] = 1e6 * median(waits);
}

void worker_asleep(benchmark::State& state) { enqueue_to_start(state, std::chrono::microseconds(500)); }
void worker_awake(benchmark::State& state) { enqueue_to_start(state, std::chrono::microseconds(0)); }

/// Measures the time that a caller needs to enqueue an operation while the queue has space. With a full queue, the
/// caller would wait for the worker, and the benchmark would measure the worker.
void enqueue(benchmark::State& state) {
  constexpr int kOperations = 512;
  static_assert(kOperations < HostQueue::kCapacity);
  const auto device = make_host_device(1);
  const auto gather = device->make_stream(Lane::kGather);
  int64_t ran = 0;
  for (auto _ : state) {
    const auto start = Clock::now();
    for (int i = 0; i < kOperations; ++i) as_host_stream(*gather).run([&ran] { ++ran; });
    state.SetIterationTime(seconds_since(start));
    gather->synchronize();
  }
  state.counters["operations"] = kOperations;
  state.counters["microseconds_per_operation"] = benchmark::Counter(
      1e-6 * kOperations, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

/// Two streams that alternate: every operation waits for an event of the other stream.
void events_between_two_streams(benchmark::State& state) {
  constexpr int kOperations = 100'000;
  const auto device = make_host_device(1);
  const std::unique_ptr<Stream> streams[] = {device->make_stream(Lane::kGather), device->make_stream(Lane::kReduce)};
  const std::unique_ptr<Event> events[] = {device->make_event(), device->make_event()};
  int64_t ran = 0;
  for (auto _ : state) {
    for (int i = 0; i < kOperations; ++i) {
      Stream& stream = *streams[i % 2];
      stream.wait(*events[(i + 1) % 2]);
      as_host_stream(stream).run([&ran] { ++ran; });
      stream.record(*events[i % 2]);
    }
    streams[0]->synchronize();
    streams[1]->synchronize();
  }
  state.counters["operations"] = kOperations;
  state.counters["microseconds_per_operation"] = benchmark::Counter(
      1e-6 * kOperations, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

/// One lane with many operations and no events.
void one_stream(benchmark::State& state) {
  constexpr int kOperations = 100'000;
  const auto device = make_host_device(1);
  const auto gather = device->make_stream(Lane::kGather);
  int64_t ran = 0;
  for (auto _ : state) {
    for (int i = 0; i < kOperations; ++i) as_host_stream(*gather).run([&ran] { ++ran; });
    gather->synchronize();
  }
  state.counters["operations"] = kOperations;
  state.counters["microseconds_per_operation"] = benchmark::Counter(
      1e-6 * kOperations, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

BENCHMARK(worker_asleep)
    ->Name("stream/host/enqueue_to_start_asleep")
    ->UseManualTime()
    ->Iterations(500)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(worker_awake)
    ->Name("stream/host/enqueue_to_start_awake")
    ->UseManualTime()
    ->Iterations(5000)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(enqueue)->Name("stream/host/enqueue")->UseManualTime()->Iterations(200)->Unit(benchmark::kMicrosecond);
BENCHMARK(one_stream)
    ->Name("stream/host/100000_operations")
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(events_between_two_streams)
    ->Name("stream/host/100000_operations_between_two")
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace aliquot
