/* The version of these headers, for the preprocessor. aliquot_version() of <aliquot/c.h> returns the version of the
 * library that the program runs with. CMakeLists.txt reads the version of the project from this file. */
#pragma once

/** The parts of the version. Until 1.0, each minor version may change the interface. */
#define ALIQUOT_VERSION_MAJOR 0
#define ALIQUOT_VERSION_MINOR 1
#define ALIQUOT_VERSION_PATCH 0

/** A version as a number, for comparisons: #if ALIQUOT_VERSION >= ALIQUOT_VERSION_NUMBER(0, 2, 0) */
#define ALIQUOT_VERSION_NUMBER(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define ALIQUOT_VERSION ALIQUOT_VERSION_NUMBER(ALIQUOT_VERSION_MAJOR, ALIQUOT_VERSION_MINOR, ALIQUOT_VERSION_PATCH)
