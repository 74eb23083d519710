# aliquot_rule_sources(SOURCES...): marks sources of the calling folder that define optimizer rules (<aliquot/rule.h>).
# With -fno-math-errno, square roots need not set errno. With -fno-trapping-math, operations need not set floating-point
# exception flags. Compilers vectorize the loops of rules only with both flags; otherwise the loops are several times
# slower. Neither flag changes a result. -ffp-contract=off and --fmad=false prevent fused multiply-add, so that all
# processors compute the same bits. A precompiled header stores optimization options, and GCC crashes if a source with
# others uses it.
function(aliquot_rule_sources)
  set_property(SOURCE ${ARGN} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -O3
    "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-fno-math-errno;-fno-trapping-math;-ffp-contract=off>"
    "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-Xcompiler=-fno-math-errno,-fno-trapping-math,-ffp-contract=off>")
endfunction()
