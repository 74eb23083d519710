# aliquot_rule_sources(SOURCES...): of the calling folder, those that define rules of their own (<aliquot/rule.h>). With these
# promises, that square roots need not set errno and exceptions' flags are nobody's business, their loops vectorise;
# without them they are several times slower. Neither changes a value. Unfused products give the same bits on any processor.
function(aliquot_rule_sources)
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -O3
    "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-fno-math-errno;-fno-trapping-math;-ffp-contract=off>"
    "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-Xcompiler=-fno-math-errno,-fno-trapping-math,-ffp-contract=off>")
endfunction()
