# SPDX-License-Identifier: Apache-2.0
#
# Writes OUTPUT, a header with the commit of SOURCE_DIR, whenever that changed: run at every build,
# so that a number in a report names the sources that made it.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git rev-parse --short=12 HEAD
  WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE commit RESULT_VARIABLE failed
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(failed)
  set(commit "unknown")
else()
  execute_process(COMMAND git diff --quiet HEAD --
    WORKING_DIRECTORY ${SOURCE_DIR} RESULT_VARIABLE changed ERROR_QUIET)
  if(changed)
    string(APPEND commit "+")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define FA3_COMMIT \"@commit@\"\n" @ONLY)
