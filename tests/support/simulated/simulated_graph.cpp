// Graphs of the simulated CUDA runtime. A graph runs the work of each captured stream on a thread of its own.
#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "tests/support/simulated/simulated_cuda.h"
#include "tests/support/simulated/simulated_stream_cuda.h"

namespace aliquot::simulated {

/// The captured work of one stream.
struct CapturedWork {
  enum class Kind { kWork, kRecord, kWait } kind = Kind::kWork;
  Preparation prepare;     // kWork
  std::size_t record = 0;  // kRecord and kWait
};

/// For each stream of a capture, how many of its entries come before a point of the capture.
using Counts = std::map<cudaStream_t, std::size_t>;

/// The work of the streams of a capture, in the order of the calls.
struct Capture {
  cudaStream_t origin = nullptr;
  std::thread::id thread;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  bool invalid = false;
  std::vector<std::pair<cudaStream_t, CapturedWork>> work;
  std::map<cudaStream_t, Counts> before;  // of the next entry of each stream
  std::vector<Counts> before_record;

  void add(cudaStream_t stream, CapturedWork one) {
    work.emplace_back(stream, std::move(one));
    ++before[stream][stream];
  }
  void join(cudaStream_t stream, std::size_t record) {
    for (const auto& [of, count] : before_record[record]) before[stream][of] = std::max(before[stream][of], count);
    add(stream, {CapturedWork::Kind::kWait, {}, record});
  }
  /// Whether all work comes before the end of the origin's work.
  bool is_joined() {
    return std::ranges::all_of(before, [&](const auto& of) {
      const auto& [stream, counts] = of;
      const auto found = counts.find(stream);
      return found == counts.end() || before[origin][stream] == found->second;
    });
  }
};

namespace {

thread_local int captures_of_thread = 0;
std::atomic<int64_t> launch_count{0};

}  // namespace

bool this_thread_captures() { return captures_of_thread > 0; }
cudaError_t refused_in_capture(cudaStream_t stream) {
  if (stream != nullptr && stream->capture != nullptr) stream->capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

int64_t launched_graphs() { return launch_count; }

void enqueue(cudaStream_t stream, Preparation prepare, const MemoryRanges& uses) {
  if (stream->capture == nullptr) return stream->enqueue(prepare(), uses);
  stream->capture->add(stream, {CapturedWork::Kind::kWork, std::move(prepare), 0});
}

bool record_captured(CUevent_st& event, cudaStream_t stream) {
  if (stream->capture == nullptr) return false;
  Capture& capture = *stream->capture;
  const std::size_t record = capture.before_record.size();
  capture.add(stream, {CapturedWork::Kind::kRecord, {}, record});
  capture.before_record.push_back(capture.before[stream]);
  const std::lock_guard lock(event.mutex);
  event.event_record = nullptr;
  event.captured = {true, stream->capture, record};
  return true;
}

bool wait_captured(CUevent_st& event, cudaStream_t stream, cudaError_t& result) {
  const CapturedRecord recorded = [&] {
    const std::lock_guard lock(event.mutex);
    return event.captured;
  }();
  if (!recorded.exists) {
    if (stream->capture == nullptr) return false;
    if (event.get() == nullptr) return true;  // the event was never recorded
    stream->capture->invalid = true;
    result = cudaErrorStreamCaptureIsolation;
    return true;
  }
  const auto capture = recorded.capture.lock();
  const bool has_ended = capture == nullptr || capture->origin == nullptr;
  if (has_ended || (stream->capture != nullptr && stream->capture != capture)) {
    result = cudaErrorCapturedEvent;
    return true;
  }
  stream->capture = capture;
  capture->join(stream, recorded.record);
  return true;
}

}  // namespace aliquot::simulated

using aliquot::simulated::Capture;
using aliquot::simulated::CapturedWork;

struct CUgraph_st {
  std::shared_ptr<Capture> capture;
};

/// It exists until the last launch has ended, also if the graph is destroyed earlier.
struct GraphState {
  explicit GraphState(std::shared_ptr<Capture> of) : capture(std::move(of)) {
    for (const auto& [stream, counts] : capture->before) streams[stream] = std::make_unique<CUstream_st>(stream->gpu);
  }
  std::shared_ptr<Capture> capture;
  std::map<cudaStream_t, std::unique_ptr<CUstream_st>> streams;  // one in place of each captured stream
};

struct CUgraphExec_st {
  std::shared_ptr<GraphState> state;
};

namespace {

/// Removes all streams from a capture.
void end(Capture& capture) {
  for (const auto& [stream, counts] : capture.before) stream->capture = nullptr;
  capture.origin = nullptr;
  --aliquot::simulated::captures_of_thread;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr || stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->mode = mode;
  stream->capture->before[stream] = {};
  ++aliquot::simulated::captures_of_thread;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream == nullptr || stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->invalid                      ? cudaStreamCaptureStatusInvalidated
                                                            : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const auto capture = stream->capture;
  if (capture == nullptr || capture->origin != stream) return cudaErrorStreamCaptureUnmatched;
  if (capture->thread != std::this_thread::get_id()) return cudaErrorStreamCaptureWrongThread;
  const bool joined = capture->is_joined();
  end(*capture);
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  *graph = new CUgraph_st{capture};
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{std::make_shared<GraphState>(graph->capture)};
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  using Kind = CapturedWork::Kind;
  struct Prepared {
    CUstream_st* stream;
    std::function<void()> work;
  };
  const auto state = exec->state;
  std::vector<std::shared_ptr<aliquot::simulated::EventRecord>> records;
  for (std::size_t i = 0; i < state->capture->before_record.size(); ++i)
    records.push_back(std::make_shared<aliquot::simulated::EventRecord>());
  std::vector<Prepared> all;
  for (const auto& [of, one] : state->capture->work) {
    CUstream_st* const own = state->streams.at(of).get();
    if (one.kind == Kind::kRecord) all.push_back({own, [record = records[one.record]] { record->pass(); }});
    if (one.kind == Kind::kWait) all.push_back({own, [record = records[one.record]] { record->wait(); }});
    if (one.kind == Kind::kWork) all.push_back({own, one.prepare()});
  }
  ++aliquot::simulated::launch_count;
  stream->enqueue([state, all = std::move(all)] {
    for (const Prepared& one : all) one.stream->enqueue(one.work);
    for (const auto& [of, own] : state->streams) own->wait();
  });
  return cudaSuccess;
}

}  // extern "C"
