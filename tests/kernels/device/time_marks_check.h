#pragma once
// The test of TimeMarks, for every kind of device.

#include <array>
#include <chrono>
#include <gtest/gtest.h>
#include <thread>

#include "kernels/device/time_marks.h"
#include "kernels/system/seconds.h"

namespace aliquot {

/// Sets marks in two streams. Expects that their times are consistent with one another, and with the times at which
/// host work of the streams ran. `tolerance_seconds`: how much the clock of the device may differ from that of the
/// host.
inline void expect_times_of_streams(Device& device, double tolerance_seconds) {
  const auto marks = make_time_marks(device, 4);
  const auto first = device.make_stream(Lane::kGather), second = device.make_stream(Lane::kReduce);
  const auto event = device.make_event();
  std::array<double, 4> seconds{};
  for (int repetition = 0; repetition < 2; ++repetition) {
    double work_began = 0, work_ended = 0;
    const double began = now_seconds();
    marks->set(*first, 0);
    first->run([&work_began, &work_ended] {
      work_began = now_seconds();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      work_ended = now_seconds();
    });
    marks->set(*first, 1);
    first->record(*event);
    second->wait(*event);
    marks->set(*second, 2);
    first->synchronize();
    second->synchronize();
    const double ended = now_seconds();
    marks->read(seconds);
    EXPECT_GE(seconds[0], began - tolerance_seconds);
    EXPECT_LE(seconds[0], work_began + tolerance_seconds);
    EXPECT_GE(seconds[1], work_ended - tolerance_seconds);
    EXPECT_GE(seconds[2], seconds[1] - tolerance_seconds);
    EXPECT_LE(seconds[2], ended + tolerance_seconds);
    EXPECT_EQ(seconds[3], 0) << "a mark that was never set";
  }
}

}  // namespace aliquot
