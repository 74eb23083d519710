#pragma once
// Parameters that a model accesses through std::mdspan or Kokkos::View. Header-only; needs neither of them to compile.

#include "engine/view_slot.h"
