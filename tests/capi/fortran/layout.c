/* Sizes of the types of <aliquot/c.h>, and offsets of their last fields, for fortran_test.f90. */
#include <aliquot/c.h>
#include <stddef.h>

#define LAYOUT(type, last) sizeof(type), offsetof(type, last)

void aliquot_test_layout(int64_t* numbers, int count);
void aliquot_test_layout(int64_t* numbers, int count) {
  const size_t all[] = {LAYOUT(aliquot_parameter, partial_gradient),
                        LAYOUT(aliquot_collective, not_in_recompute),
                        LAYOUT(aliquot_activations, collectives),
                        LAYOUT(aliquot_use_memory, weight_inputs),
                        LAYOUT(aliquot_memory, peak),
                        LAYOUT(aliquot_work, replayed),
                        LAYOUT(aliquot_step_report, first_not_finite)};
  for (int i = 0; i < count; ++i) numbers[i] = (size_t)i < sizeof all / sizeof *all ? (int64_t)all[i] : -1;
}
