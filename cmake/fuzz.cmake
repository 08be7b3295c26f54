# One libFuzzer program for each reader of outside text (tests/fuzz/README.md). Clang only; LibTorch is
# not linked, so that all code in the program is watched.
option(SHARDPROOF_FUZZ "libFuzzer programs of the readers (clang)" OFF)

# The readers' own sources where their folder needs LibTorch.
set(shardproof_fuzz_safetensors_header src/tensor/safetensors_header.cpp src/tensor/tensor_view.cpp)
file(GLOB shardproof_fuzz_model_config RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS
  ${CMAKE_SOURCE_DIR}/src/model/config*.cpp ${CMAKE_SOURCE_DIR}/src/model/family.cpp)

function(shardproof_fuzz)
  if(NOT SHARDPROOF_FUZZ)
    return()
  endif()
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "libFuzzer is part of clang: configure with the preset 'fuzz', or leave SHARDPROOF_FUZZ off.")
  endif()
  foreach(reader scenario safetensors_header model_config)
    add_executable(fuzz_${reader} EXCLUDE_FROM_ALL tests/fuzz/target.cpp tests/fuzz/${reader}.cpp
      ${shardproof_fuzz_${reader}})
    target_compile_definitions(fuzz_${reader} PRIVATE SHARDPROOF_FUZZ_READER=read_${reader})
    target_link_libraries(fuzz_${reader} PRIVATE sim_case_scenario shardproof_warnings)
    target_link_options(fuzz_${reader} PRIVATE -fsanitize=fuzzer)
    set_target_properties(fuzz_${reader} PROPERTIES UNITY_BUILD OFF)
  endforeach()
endfunction()
