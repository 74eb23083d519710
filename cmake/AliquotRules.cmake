# aliquot_rule_sources(SOURCES...): marks sources of the calling folder that define optimizer rules (<aliquot/rule.h>).
# Compilers vectorize their loops only if square roots need not set errno and operations need not set floating-point
# exception flags. Otherwise the loops are several times slower. Neither option changes a value. Without fused
# multiply-add, all processors compute the same bits.
function(aliquot_rule_sources)
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -O3
    "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-fno-math-errno;-fno-trapping-math;-ffp-contract=off>"
    "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-Xcompiler=-fno-math-errno,-fno-trapping-math,-ffp-contract=off>")
endfunction()
