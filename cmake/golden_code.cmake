# The digest of all code that a golden's values come from, as a source file that is rewritten when one of
# those files changes. Goldens cached between builds are keyed by it (sim/run/golden_cache.h).
#
# Included by CMakeLists.txt it adds the file to a target: shardproof_golden_code(TARGET).
# As a script (cmake -P) it writes the file: -DROOT= -DSETTINGS= -DOUT=
set(golden_folders golden src/base src/mesh src/tensor src/observe src/model src/model/moe sim/case
  sim/case/inputs sim/case/record sim/case/recorder)

if(CMAKE_SCRIPT_MODE_FILE)
  set(text "${SETTINGS}\n")
  foreach(folder ${golden_folders})
    file(GLOB files RELATIVE ${ROOT} ${ROOT}/${folder}/*.cpp ${ROOT}/${folder}/*.h)
    foreach(name ${files})
      file(SHA256 ${ROOT}/${name} hash)
      string(APPEND text "${name} ${hash}\n")
    endforeach()
  endforeach()
  string(SHA256 digest "${text}")
  file(CONFIGURE OUTPUT ${OUT} CONTENT [=[
#include "sim/run/golden_code.h"

const char* shardproof::sim::run::golden_code() { return "@digest@"; }
]=] @ONLY)
  return()
endif()

function(shardproof_golden_code target)
  set(patterns)
  foreach(folder ${golden_folders})
    list(APPEND patterns ${CMAKE_SOURCE_DIR}/${folder}/*.cpp ${CMAKE_SOURCE_DIR}/${folder}/*.h)
  endforeach()
  file(GLOB files CONFIGURE_DEPENDS ${patterns})
  set(out ${CMAKE_BINARY_DIR}/golden_code.cpp)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR} -DOUT=${out}
      "-DSETTINGS=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_FLAGS}"
      -P ${CMAKE_SOURCE_DIR}/cmake/golden_code.cmake
    DEPENDS ${files} ${CMAKE_SOURCE_DIR}/cmake/golden_code.cmake
    COMMENT "Digest of the golden's code" VERBATIM)
  target_sources(${target} PRIVATE ${out})
  set_source_files_properties(${out} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
