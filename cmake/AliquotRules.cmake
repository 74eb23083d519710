# aliquot_rule_sources(SOURCES...): marks sources of the calling folder that define optimizer rules (<aliquot/rule.h>).
# Their loops vectorise only without errno of square roots and floating-point exception flags, and are several times
# slower otherwise. Neither option changes a value. Without fused multiply-add, all processors compute the same bits.
function(aliquot_rule_sources)
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -O3
    "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-fno-math-errno;-fno-trapping-math;-ffp-contract=off>"
    "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-Xcompiler=-fno-math-errno,-fno-trapping-math,-ffp-contract=off>")
endfunction()
