#pragma once
// How the models of tests enqueue their code.

#include <functional>

#include "kernels/device/stream.h"

namespace aliquot::testing_model {

/// Enqueues code on the compute stream. By default it is host work. Tests of graphs, which cannot have host work, set a
/// function that enqueues it in place of a kernel of a simulated GPU.
using EnqueueCode = void (*)(Stream& compute, std::function<void()> code);
inline EnqueueCode enqueue_code = [](Stream& compute, std::function<void()> code) { compute.run(std::move(code)); };

}  // namespace aliquot::testing_model
